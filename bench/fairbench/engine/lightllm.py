"""A simulation of the engine S-LoRA / LightLLM, used to replay measured runs.

LightLLM has no prefix cache and no preemption. A request is admitted only if the KV pool can hold
the whole batch until all outputs are complete. Output lengths are known in advance, because the
replayed S-LoRA runs ignored the end-of-sequence token. The engine tries to start a minibatch (a
prefill batch) when the server is idle. A busy server first tries to start another minibatch
``max_wait_tokens`` decode steps after the last minibatch. If the minibatch cannot start, a busy
server tries again after each later decode step. Source: [VTC-artifact],
slora/server/router/{manager,req_queue}.py.

One event loop of LightLLM reads the socket and runs the model. After a step, the engine decides
before it reads the socket, so a request that arrived during the step is seen one decision late. If
the step finishes a request, the engine reads the socket before the next decision, so no arrival is
seen late. An idle server looks for requests every 10 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairbench.core import PS_PER_S, Prompt, Request
from fairbench.engine.batch import BatchView, Prefill, RunningBatch
from fairbench.engine.clock import DECIDE, END
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import KVCache, KVNode
from fairbench.engine.loop import EngineLoop
from fairbench.engine.sequence import Sequence
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.hardware.engine_params import LightLLMLimits, LightLLMParams, lightllm_limits
from fairbench.hardware.gpu_time import PS_PER_MS
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.load_cap import LoadCap
from fairbench.schedulers.params import make_params


class UncachedMemory:
    """The ``KVMemory`` of an engine without a prefix cache.

    A minibatch uses memory from the end of its prefill on.
    """

    evictable = 0

    def __init__(self, capacity: int, batch: RunningBatch) -> None:
        self.capacity = capacity
        self._batch = batch

    @property
    def free(self) -> int:
        return self.capacity - self._batch.context_tokens

    def common_tokens(self, prompt: Prompt, limit: int) -> int:
        return 0

    def abandon(self) -> None:
        """Do nothing, because this engine has no cache."""


class FitTest:
    """A test of whether the KV pool can hold a batch and a new request until they end.

    The pool must be large enough for the remaining batch whenever a request finishes. Requests are
    sorted by remaining outputs, the longest first. For every k, (remaining output of request k) * k
    + (sum of the first k current lengths) must be less than the pool size in tokens. The last
    output token of a request needs no memory. A new request's current length already includes its
    whole prompt.
    """

    def __init__(self, batch: RunningBatch, limits: LightLLMLimits) -> None:
        self._limits = limits
        self._clients = set(batch.per_client)
        # ``_lengths`` lists each request's remaining output and current length, in tokens.
        self._lengths: list[tuple[int, int]] = []
        for sequence in batch.sequences:
            produced = batch.produced(sequence)
            remaining = sequence.output.length - produced - 1
            self._lengths.append((remaining, sequence.total + produced))

    def try_add(self, sequence: Sequence) -> bool:
        """Add a request if it fits; return whether it was added."""
        extended = [*self._lengths, (sequence.output.length - 1, sequence.total + 1)]
        if len(extended) > self._limits.max_running_requests:
            return False
        clients = self._clients | {sequence.request.client}
        extended.sort(key=lambda length: -length[0])
        held = most = 0
        for size, (remaining, length) in enumerate(extended, start=1):
            held += length
            most = max(most, remaining * size + held)
        if most >= self._limits.pool_tokens - self._limits.client_tokens * len(clients):
            return False
        self._lengths, self._clients = extended, clients
        return True


def fill_minibatch(
    scheduler: LocalScheduler,
    waiting: WaitingQueue[KVNode],
    batch: RunningBatch,
    limits: LightLLMLimits,
    cap: LoadCap,
    now_s: float,
) -> list[Sequence]:
    """Admit requests to a minibatch, in the scheduler's order, while ``batch`` runs."""
    fit = FitTest(batch, limits)
    admitted: list[Sequence] = []
    tokens = 0

    def try_admit(request: Request) -> Tried:
        nonlocal tokens
        sequence = waiting.sequence_of(request)
        if not cap.has_room(request):
            return Tried.NO_ROOM
        if tokens + sequence.total > limits.minibatch_tokens or not fit.try_add(sequence):
            return Tried.NO_ROOM
        tokens += sequence.total
        admitted.append(sequence)
        sequence.extend_tokens = sequence.total
        waiting.admit(request)
        cap.enter(request)
        scheduler.on_admitted(request, sequence.total, False)
        return Tried.ADMITTED

    drive(scheduler.select(waiting, now_s), try_admit)
    waiting.end_pass()
    return admitted


class LightLLMWorker(EngineLoop[KVNode]):
    """A LightLLM server."""

    def __init__(self, parts: WorkerParts, limits: LightLLMLimits) -> None:
        batch = RunningBatch(parts.log.index)
        waiting = WaitingQueue(KVCache(limits.pool_tokens), parts.scheduler.cache_aware)
        super().__init__(parts, batch, waiting, limits.load_cap)
        self.limits = limits
        self.cache = UncachedMemory(limits.pool_tokens, batch)
        waiting.running = BatchView(batch, lambda: self.cache.free)
        self._overhead_ps = round(limits.prefill_overhead_ms * PS_PER_MS)
        self._poll_ps = round(limits.idle_poll_ms * PS_PER_MS)
        self._decoded = 0  # decode steps since the last minibatch
        self._prefilling: list[Sequence] = []
        self._prefill_start_ps = 0
        self._idle_since_ps = 0

    # Inbox of requests that the engine has not read from its socket

    def fits(self, request: Request) -> bool:
        return request.input_tokens <= self.limits.minibatch_tokens

    def _arrive(self, sequence: Sequence) -> None:
        request, now_s = sequence.request, self._clock.now_ps / PS_PER_S
        ever_fits = self.fits(request) and FitTest(RunningBatch(), self.limits).try_add(sequence)
        if not ever_fits or not self.scheduler.accepts(request, now_s):
            sequence.refuse()
            return
        if self._read_at_once():
            self.scheduler.on_arrival(request, self.waiting, now_s)
            self.waiting.enter(sequence)
            return
        self._inbox.append(sequence)
        if self._idle:
            self._idle = False
            at_ps, since_ps, poll_ps = self._clock.now_ps, self._idle_since_ps, self._poll_ps
            if poll_ps:
                at_ps = since_ps + -((since_ps - at_ps) // poll_ps) * poll_ps
            self._clock.at(at_ps, DECIDE, self.index, self._decide)

    def _read_at_once(self) -> bool:
        """Return whether a request that arrives now is considered in the next minibatch decision.

        A minibatch decision ignores requests that arrived during the step before the decision.
        """
        if self._run is None:
            return bool(self._prefilling)
        self.sync()
        return self._run.steps > 1

    def _read_inbox_after(self, done: list[Sequence]) -> None:
        if done:
            self._read_inbox()

    # Engine loop

    @property
    def _may_admit(self) -> bool:
        return self.running_count == 0

    def _running(self) -> list[Sequence]:
        return [*self.batch.sequences, *self._prefilling]

    def settle(self) -> None:
        """Write the remaining records, and undo the admissions of an unfinished minibatch."""
        super().settle()
        for sequence in self._prefilling:
            sequence.not_admitted(0)

    def _start(self) -> bool:
        """Start a minibatch if one is due and fits, or else decode (S-LoRA's ``_step``)."""
        if not self.batch.size:
            self._read_inbox()
        due = self.limits.max_wait_tokens - self._decoded
        if (due <= 0 or not self.batch.size) and self._start_prefill():
            return True
        if not self.batch.size:
            return False
        # Decode until the next prefill is due; if a prefill is overdue, decode a single step.
        self._start_run(min(self.batch.steps_to_finish(), max(due, 1)), 0)
        self._read_inbox()
        return True

    def _rest(self) -> None:
        self._idle_since_ps = self._clock.now_ps
        super()._rest()

    def _provide(self, steps: int) -> None:
        """Count decode steps; ``FitTest`` has already reserved their memory at admission."""
        self._decoded += steps

    def _release(self, sequence: Sequence) -> None:
        self.batch.remove_sequence(sequence)

    # Prompts

    def _start_prefill(self) -> bool:
        now_ps = self._clock.now_ps
        admitted = fill_minibatch(
            self.scheduler, self.waiting, self.batch, self.limits, self.cap, now_ps / PS_PER_S
        )
        if not admitted:
            return False
        start_ps = now_ps + self._delay_ps(prompts=True)
        self._prefilling, self._prefill_start_ps = admitted, start_ps
        for sequence in admitted:
            sequence.admitted_ps = now_ps
        chunks = [(0, sequence.total) for sequence in admitted]
        rows = self.limits.prefill_rows(sum(tokens for _, tokens in chunks))
        duration_ps = self._profile.prefill_ps(chunks, rows) + self._overhead_ps
        self._clock.at(start_ps + duration_ps, END, self.index, self._end_prefill)
        return True

    def _end_prefill(self) -> None:
        admitted, self._prefilling = self._prefilling, []
        self._decoded = 0
        self._end_stretch()
        prefills = [Prefill(s, 0, s.total, first=True, last=True) for s in admitted]
        self._end_prompts(prefills, self._prefill_start_ps)


class LightLLMContract:
    """The ``EngineContract`` of LightLLM, whose settings are ``LightLLMParams``."""

    mixed_steps = False

    def __init__(self, settings: Mapping[str, Any], profile: TimingProfile) -> None:
        params = make_params("lightllm", LightLLMParams, settings)
        self.limits = lightllm_limits(params, profile)
        self.pool_tokens = self.limits.pool_tokens
        self.most_running = self.limits.max_running_requests
        self.chunk_tokens = self.limits.minibatch_tokens
        given = params.max_total_tokens
        self.mem_fraction_static = None if given else profile.pool.mem_fraction_static

    def with_pool(self, tokens: int) -> Mapping[str, Any]:
        return {"lightllm.max_total_tokens": max(1, tokens)}

    def worker(self, parts: WorkerParts) -> LightLLMWorker:
        return LightLLMWorker(parts, self.limits)
