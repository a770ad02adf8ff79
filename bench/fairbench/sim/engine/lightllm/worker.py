"""The engine contract of S-LoRA / LightLLM, also used to replay measured runs.

No prefix cache and no preemption: a request is admitted only if the batch can be decoded to its
end, with output lengths known, as in the measured runs, which ignored the end-of-sequence token.
A new minibatch is tried ``max_wait_tokens`` decode steps after the last one and from then on after
each step, or when idle. Source: [VTC-artifact], slora/server/router/{manager,req_queue}.py.

One event loop both reads the socket and runs the model, and the step's own coroutine resumes before
the reader's. So a request that arrives during a step is seen one decision late, unless the step
ended a request (the batch is filtered then, which lets the reader run). Idle, it looks every 10 ms.
"""

from __future__ import annotations

from fairbench.core import PS_PER_S, Request
from fairbench.hardware.gpu_time import PS_PER_MS, prompt_parts
from fairbench.hardware.lightllm_params import LightLLMLimits
from fairbench.sim.clock import DECIDE, END
from fairbench.sim.engine.batch import BatchView, RunningBatch
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.lightllm.minibatch import FitTest, Memory, fill_minibatch
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.prefill import Prefill, report_prompts, shares_of
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.kv_node import KVNode
from fairbench.sim.sequence import Sequence


class LightLLMWorker(EngineLoop[KVNode]):
    """A LightLLM server. ``submit`` requests; the ``on_done`` of each is called at its end."""

    def __init__(self, parts: WorkerParts, limits: LightLLMLimits) -> None:
        batch = RunningBatch(parts.log.index)
        waiting = WaitingQueue(KVCache(limits.pool_tokens), parts.scheduler.cache_aware)
        super().__init__(parts, batch, waiting, limits.load_cap)
        self.limits = limits
        self.cache = Memory(limits.pool_tokens, batch)
        waiting.running = BatchView(batch, lambda: self.cache.free)
        self._overhead_ps = round(limits.prefill_overhead_ms * PS_PER_MS)
        self._poll_ps = round(limits.idle_poll_ms * PS_PER_MS)
        self._decoded = 0  # steps since the last minibatch
        self._prefilling: list[Sequence] = []
        self._prefill_start_ps = 0
        self._idle_since_ps = 0

    # Arrivals. The inbox has those of which the queue does not know yet.

    def fits(self, request: Request) -> bool:
        return request.input_tokens <= self.limits.minibatch_tokens

    def _arrive(self, sequence: Sequence) -> None:
        """Take in a request that has passed the front end."""
        request, now_s = sequence.request, self._clock.now_ps / PS_PER_S
        ever_fits = self.fits(request) and FitTest(RunningBatch(), self.limits).try_add(sequence)
        if not ever_fits or not self.scheduler.accepts(request, now_s):
            sequence.refuse()
        elif self._read_at_once():
            self.scheduler.on_arrival(request, self.waiting, now_s)
            self.waiting.enter(sequence)
        else:
            self._inbox.append(sequence)
            if self._idle:
                self._idle = False
                at_ps = self._next_look_ps(self._idle_since_ps)
                self._clock.at(at_ps, DECIDE, self.index, self._decide)

    def _read_at_once(self) -> bool:
        """Return whether the next decision sees an arrival: false in the last step before."""
        if self._run is None:
            return bool(self._prefilling)
        self.sync()
        return self._run.steps > 1

    def _next_look_ps(self, since_ps: int) -> int:
        """Return when a server idle since ``since_ps`` notices a request that arrives now."""
        if not self._poll_ps:
            return self._clock.now_ps
        return since_ps + -((since_ps - self._clock.now_ps) // self._poll_ps) * self._poll_ps

    def _hear_after(self, done: list[Sequence]) -> None:
        if done:
            self._hear()

    # The loop.

    @property
    def _may_admit(self) -> bool:
        """Return whether nothing runs; minibatches admit requests in groups."""
        return self.running_count == 0

    def _running(self) -> list[Sequence]:
        return [*self.batch.sequences, *self._prefilling]

    def settle(self) -> None:
        """Settle; the requests of a minibatch that did not end count as not admitted."""
        super().settle()
        for sequence in self._prefilling:
            sequence.not_admitted(0)

    def _start(self) -> bool:
        """Run S-LoRA's ``_step``: start a due minibatch if a request fits, otherwise decode."""
        if not self.batch.size:
            self._hear()
        due = self.limits.max_wait_tokens - self._decoded
        if (due <= 0 or not self.batch.size) and self._start_prefill():
            return True
        if not self.batch.size:
            return False
        self._start_run(min(self.batch.steps_to_finish(), max(due, 1)), 0)  # overdue: every step
        self._hear()
        return True

    def _rest(self) -> None:
        self._idle_since_ps = self._clock.now_ps
        super()._rest()

    def _provide(self, steps: int) -> None:
        """Count the steps since the last minibatch, whose memory is there."""
        self._decoded += steps

    def _release(self, sequence: Sequence) -> None:
        self.batch.leave(sequence)

    # Prefill.

    def _start_prefill(self) -> bool:
        now_ps = self._clock.now_ps
        admitted = fill_minibatch(
            self.scheduler, self.waiting, self.batch, self.limits, self.cap, now_ps / PS_PER_S
        )
        if not admitted:
            return False
        self._prefilling, self._prefill_start_ps = admitted, now_ps
        for sequence in admitted:
            sequence.admitted_ps = now_ps
        chunks = [(0, sequence.total) for sequence in admitted]
        rows = self.limits.prefill_rows(sum(tokens for _, tokens in chunks))
        duration_ps = self._profile.prefill_ps(chunks, rows) + self._overhead_ps
        self._clock.at(now_ps + duration_ps, END, self.index, self._end_prefill)
        return True

    def _end_prefill(self) -> None:
        admitted, self._prefilling = self._prefilling, []
        start_ps, now_ps = self._prefill_start_ps, self._clock.now_ps
        self._decoded = 0
        self._end_stretch()
        for sequence in admitted:
            self._produce_first(sequence)
        prefills = [Prefill(s, 0, s.total, first=True, last=True) for s in admitted]
        parts = prompt_parts(self._costs, now_ps - start_ps, [one.chunk for one in prefills])
        report_prompts(prefills, parts, self.scheduler)
        shares = shares_of(prefills, parts)
        self._log.prefill(self.index, start_ps, now_ps, len(prefills), shares)
        self._end_iteration()
