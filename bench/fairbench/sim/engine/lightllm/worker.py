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

from collections.abc import Callable

from fairbench.core import PS_PER_S
from fairbench.hardware.gpu_time import PS_PER_MS, prompt_parts
from fairbench.hardware.lightllm_params import LightLLMLimits
from fairbench.hardware.timing import ProfileCosts, TimingProfile
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.load_cap import load_cap
from fairbench.sim.clock import DECIDE, END, Clock
from fairbench.sim.engine.batch import BatchView, DecodeRun, RunningBatch
from fairbench.sim.engine.frontend import FrontendQueue, WakeUp
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.lightllm.minibatch import FitTest, Memory, fill_minibatch
from fairbench.sim.engine.prefill import Prefill, report_prompts
from fairbench.sim.engine.sglang.admission_budget import shares_of
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.records.service_log import ServiceLog
from fairbench.sim.records.stretches import Stretch
from fairbench.sim.sequence import FINISHED, Sequence


class LightLLMWorker:
    """A LightLLM server. ``submit`` requests; the ``on_done`` of each is called at its end.

    Iterations are not recorded without a ``log``.
    """

    def __init__(
        self,
        clock: Clock,
        scheduler: LocalScheduler,
        profile: TimingProfile,
        limits: LightLLMLimits,
        log: ServiceLog | None = None,
        index: int = 0,
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self.limits = limits
        self.batch = RunningBatch(None if log is None else log.index)
        self.cap = load_cap(limits.load_cap, ProfileCosts(profile))
        self.cache = Memory(limits.pool_tokens, self.batch)
        self.waiting = WaitingQueue(KVCache(limits.pool_tokens), scheduler.cache_aware)
        self.waiting.running = BatchView(self.batch, lambda: self.cache.free)
        self.on_pass: Callable[[], None] | None = None  # after every decision what to run next
        self.frontend = FrontendQueue(clock, profile.frontend, index, self._arrive)
        self._clock = clock
        self._profile = profile
        self._costs = ProfileCosts(profile)
        self._log = log
        self._overhead_ps = round(limits.prefill_overhead_ms * PS_PER_MS)
        self._decoded = 0  # steps since the last minibatch
        self._run: DecodeRun | None = None
        self._stretch: Stretch | None = None  # under way; written when the batch changes
        self._prefilling: list[Sequence] = []
        self._prefill_start_ps = 0
        self._poll_ps = round(limits.idle_poll_ms * PS_PER_MS)
        self._idle_since_ps: int | None = 0
        self._unread: list[Sequence] = []  # arrived, but the queue does not know of them yet
        self._wake_up = WakeUp(clock, index, self._awake)

    # Arrivals.

    def submit(self, sequence: Sequence) -> None:
        """Take in a request; refuse a request that never fits or is over a rate limit."""
        sequence.worker = self.index
        self.frontend.enter(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        """Take in a request that has passed the front end."""
        request = sequence.request
        now_s = self._clock.now_ps / PS_PER_S
        if not self._ever_fits(sequence) or not self.scheduler.accepts(request, now_s):
            sequence.refuse()
            return
        if self._read_at_once():
            self.scheduler.on_arrival(request, self.waiting, now_s)
            self.waiting.enter(sequence)
            return
        self._unread.append(sequence)
        if self._idle_since_ps is not None:
            at_ps = self._next_look_ps(self._idle_since_ps)
            self._clock.at(at_ps, DECIDE, self.index, self._decide)
            self._idle_since_ps = None

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

    def _read(self) -> None:
        """Pass the unread arrivals to the scheduler and the waiting queue."""
        unread, self._unread = self._unread, []
        for sequence in unread:
            self.scheduler.on_arrival(sequence.request, self.waiting, self._clock.now_ps / PS_PER_S)
            self.waiting.enter(sequence)

    def _ever_fits(self, sequence: Sequence) -> bool:
        alone = FitTest(RunningBatch(), self.limits)
        return sequence.total <= self.limits.minibatch_tokens and alone.try_add(sequence)

    # Questions from other components.

    @property
    def queued_count(self) -> int:
        """The number of requests that have arrived and do not run."""
        return len(self.frontend) + len(self._unread) + len(self.waiting)

    @property
    def running_count(self) -> int:
        """Requests that are prefilling or running."""
        return len(self.batch) + len(self._prefilling)

    @property
    def saturated(self) -> bool:
        """Return whether requests wait while others run; minibatches admit them in groups."""
        return len(self.waiting) > 0 and self.running_count > 0

    def in_flight(self) -> list[Sequence]:
        """All waiting, prefilling and running requests, in order of arrival."""
        waiting = [self.waiting.sequence_of(request) for request in self.waiting.queue_order()]
        running = [*self.batch.sequences, *self._prefilling]
        return [*running, *waiting, *self._unread, *self.frontend]

    def sync(self) -> None:
        """Update counters to the last step that has ended before now."""
        if self._run is not None:
            self._book(self._run, self._run.steps_before(self._clock.now_ps)[0])

    def settle(self) -> None:
        """Call ``sync`` and log the current, last stretch at the end of the simulation.

        A minibatch that did not end has not happened: its requests count as not admitted.
        """
        self.sync()
        self._end_stretch()
        for sequence in self._prefilling:
            sequence.not_admitted(0)

    # The loop.

    def _decide(self) -> None:
        """Run S-LoRA's ``_step``: start a due minibatch if a request fits, otherwise decode."""
        if not len(self.batch):
            self._read()
        due = self.limits.max_wait_tokens - self._decoded
        if (due <= 0 or not len(self.batch)) and self._start_prefill():
            pass
        elif len(self.batch):
            self._start_decode(max(due, 1))  # overdue: it tries every step
            self._read()
        else:
            self._idle_since_ps = self._clock.now_ps
            if len(self.waiting):  # by the scheduler's own wish
                self._wake_up.rest(self.scheduler, self.waiting)
        if self.on_pass is not None:
            self.on_pass()

    def _awake(self) -> None:
        if self._idle_since_ps is not None:
            self._idle_since_ps = None
            self._decide()

    # Prefill.

    def _start_prefill(self) -> bool:
        now_s = self._clock.now_ps / PS_PER_S
        admitted = fill_minibatch(
            self.scheduler, self.waiting, self.batch, self.limits, self.cap, now_s
        )
        if not admitted:
            return False
        now_ps = self._prefill_start_ps = self._clock.now_ps
        self._prefilling = admitted
        for sequence in admitted:
            sequence.admitted_ps = now_ps
        chunks = [(0, sequence.total) for sequence in admitted]
        rows = self.limits.prefill_rows(sum(tokens for _, tokens in chunks))
        duration_ps = self._profile.prefill_ps(chunks, rows) + self._overhead_ps
        self._clock.at(now_ps + duration_ps, END, self.index, self._end_prefill)
        return True

    def _end_prefill(self) -> None:
        admitted, self._prefilling = self._prefilling, []
        now_ps = self._clock.now_ps
        self._decoded = 0
        self._end_stretch()
        for sequence in admitted:
            sequence.first_token_ps = self.frontend.out_ps(now_ps)
            sequence.produced = 1
            self.batch.join(sequence)
            self.scheduler.on_tokens(sequence.request.client, 1)
            self.scheduler.on_request_tokens(sequence.request, 1)
        prefills = [Prefill(s, 0, s.total, first=True, last=True) for s in admitted]
        start_ps, chunks = self._prefill_start_ps, [one.chunk for one in prefills]
        parts = prompt_parts(self._costs, now_ps - start_ps, chunks)
        report_prompts(prefills, parts, self.scheduler)
        if self._log is not None:
            shares = shares_of(prefills, parts)
            self._log.prefill(self.index, start_ps, now_ps, len(prefills), shares)
        self._finish()

    # Decode.

    def _start_decode(self, most: int) -> None:
        size = len(self.batch)
        steps = min(self.batch.steps_to_finish(), most)
        first_ps = self._profile.decode_ps(size, self.batch.context_tokens)
        growth_ps = self._profile.context_ps * size
        self._run = DecodeRun(self._clock.now_ps, first_ps, growth_ps, steps)
        self._clock.at(self._run.end_ps(steps), END, self.index, self._end_decode)

    def _book(self, run: DecodeRun, steps: int) -> None:
        if not steps:
            return
        batch = self.batch
        if self._stretch is None:
            fixed_ps = self._profile.decode_ps(len(batch), 0)
            context = batch.context_tokens
            self._stretch = Stretch(run.start_ps, run.growth_ps, context, fixed_ps)
        end_ps = run.end_ps(steps)
        batch.step(steps, end_ps - run.start_ps, self._stretch.fixed_ps)
        self._decoded += steps
        run.advance(steps, end_ps)
        self._stretch.steps += steps
        self._stretch.end_ps = run.start_ps
        batch.report(steps, self.scheduler)
        if self.scheduler.times_steps:
            batch.report_time(self._stretch, self.scheduler)

    def _end_stretch(self) -> None:
        """Log the current stretch before the batch changes."""
        if self._stretch is not None and self._log is not None:
            batch = self.batch.by_client(self._stretch.steps)
            self._log.decode(self.index, self._stretch, batch)
        self._stretch = None

    def _end_decode(self) -> None:
        run, self._run = self._run, None
        assert run is not None
        self._book(run, run.steps)
        self._finish()

    def _finish(self) -> None:
        done = self.batch.finished()
        if done:
            self._end_stretch()
        for sequence in done:
            self.batch.leave(sequence)
            self.cap.finish(sequence.request, sequence.produced)
            self.scheduler.on_output(sequence.request, sequence.produced)
            sequence.status = FINISHED
            sequence.finish_ps = max(self._clock.now_ps, sequence.first_token_ps)
            self.scheduler.on_finish(sequence.request)
        if done:
            self._read()
        self._clock.at(self._clock.now_ps, DECIDE, self.index, self._decide)
        for sequence in done:
            sequence.on_done(sequence)
