"""The loop of a worker, as in SGLang and vLLM: arrivals, decode steps, the service log.

Arrivals take effect between iterations, and each step produces one token per request. Between two
boundaries at which something can change, k decode steps are one event. Iterations follow each other
without overlap. Rules: docs/appendix/engine.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Request
from fairbench.hardware.engine_params import LoadCapSetting
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.load_cap import load_cap
from fairbench.sim.clock import DECIDE, END
from fairbench.sim.engine.batch import DecodeRun, RunningBatch
from fairbench.sim.engine.contract import WorkerParts
from fairbench.sim.engine.frontend import FrontendQueue, WakeUp
from fairbench.sim.engine.host_memory import HostMemory
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.prefix_cache import N
from fairbench.sim.records.stretches import Stretch
from fairbench.sim.sequence import FINISHED, NEVER, Sequence

NOBODY: list[Sequence] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineLoop(ABC, Generic[N]):
    """The loop that replicas share. ``submit`` requests; each one ends with ``on_done``."""

    # CPython 3.11 looks up the attributes of an object with more than 30 of them slowly, unless
    # they are set here.
    __slots__ = (
        "_clock", "_computes_prompts", "_context_tokens", "_costs", "_end_ps", "_fixed_ps", "_idle",
        "_inbox", "_log", "_preempts", "_profile", "_run", "_step_ps", "_stretch", "_token_ps",
        "_wake_up", "batch", "cap", "frontend", "host", "index", "on_pass", "scheduler", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        parts: WorkerParts,
        batch: RunningBatch,
        waiting: WaitingQueue[N],
        cap: LoadCapSetting,
        host_tokens: int = 0,
    ) -> None:
        clock, profile = parts.clock, parts.profile
        self._costs = ProfileCosts(profile)
        self.index = index = parts.index
        self.scheduler = parts.scheduler
        self.batch, self.waiting = batch, waiting
        self.host = HostMemory(host_tokens, profile.pool.host_token_ps)
        self.cap = load_cap(cap, self._costs)
        # called after every decision on the next step
        self.on_pass: Callable[[], None] | None = None
        self.frontend = FrontendQueue(clock, profile.frontend, index, self._arrive)
        self._clock, self._profile, self._log = clock, profile, parts.log
        # Set here, because a cached property is slow to look up.
        self._step_ps, self._token_ps = profile.fixed_ps, profile.context_ps
        self._preempts = parts.scheduler.preempts
        # requests that have arrived since the iteration in progress began
        self._inbox: list[Sequence] = []
        self._run: DecodeRun | None = None
        self._end_ps = NEVER  # end of the latest run, as currently planned
        # Time of a step of the latest run without any context, and the context when the run began.
        self._fixed_ps = self._context_tokens = 0
        # the stretch in progress; written when the batch changes
        self._stretch: Stretch | None = None
        self._idle = True
        # whether the iteration in progress is not a run of decode steps
        self._computes_prompts = False
        self._wake_up = WakeUp(clock, index, self._awake)

    @abstractmethod
    def fits(self, request: Request) -> bool:
        """Return whether the request could run alone on this worker."""

    @property
    @abstractmethod
    def _may_admit(self) -> bool:
        """Return whether waiting requests are considered before the next step."""

    @abstractmethod
    def _start(self) -> bool:
        """Begin an iteration; return False if there is nothing to do."""

    def _running(self) -> list[Sequence]:
        """Return the sequences that are prefilling or running."""
        return list(self.batch.sequences)

    def _finished(self) -> list[Sequence]:
        """Return the sequences that the last iteration finished; called only if some may be."""
        return self.batch.finished()

    @abstractmethod
    def _release(self, sequence: Sequence) -> None:
        """Take a finished sequence out of the batch, and free its memory."""

    def _join(self, sequence: Sequence) -> None:
        """Add a sequence with a complete prompt to the decodes from the next step on."""
        self.batch.join(sequence)

    @abstractmethod
    def _provide(self, steps: int) -> None:
        """Provide memory for the finished steps of the current run."""

    # Arrivals.

    def submit(self, sequence: Sequence) -> None:
        sequence.worker = self.index
        self.frontend.enter(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        """Put a request from the front end in the inbox, unless it exceeds a limit."""
        now_s = self._clock.now_ps / PS_PER_S
        if not self.fits(sequence.request) or not self.scheduler.accepts(sequence.request, now_s):
            sequence.refuse()
            return
        self._inbox.append(sequence)
        if self._computes_prompts:
            return
        if (run := self._run) is None:
            self._hear()
        elif self._may_admit:
            self._stop_run(run)
        else:
            self.sync()
            at_ps = run.end_ps(self._next_boundary(run))
            self._clock.at(at_ps, END, self.index, partial(self._hear_within, run))
        if self._idle:
            self.wake()

    def wake(self) -> None:
        """Let an idle worker decide at this instant."""
        if self._idle:
            self._idle = False
            self._clock.at(self._clock.now_ps, DECIDE, self.index, self._decide)

    def _hear(self) -> None:
        inbox, self._inbox = self._inbox, []
        now_s = self._clock.now_ps / PS_PER_S
        for sequence in inbox:
            self.scheduler.on_arrival(sequence.request, self.waiting, now_s)
            self.waiting.enter(sequence)

    def _hear_after(self, done: list[Sequence]) -> None:
        """Read the inbox after an iteration that finished these sequences."""
        self._hear()

    def _hear_within(self, run: DecodeRun) -> None:
        """Read the inbox after a step of the run if further steps follow."""
        if run is self._run:
            self.sync()
            if run.steps:
                self._hear()

    @property
    def queued_count(self) -> int:
        return len(self.frontend) + len(self._inbox) + len(self.waiting)

    @property
    def running_count(self) -> int:
        return len(self._running())

    @property
    def saturated(self) -> bool:
        return len(self.waiting) > 0 and not self._may_admit

    def in_flight(self) -> list[Sequence]:
        waiting = [self.waiting.sequence_of(request) for request in self.waiting.queue_order()]
        return [*self._running(), *waiting, *self._inbox, *self.frontend]

    # The loop.

    def _decide(self) -> None:
        if not self._start():
            self._rest()
        if self.on_pass is not None:
            self.on_pass()

    def _rest(self) -> None:
        self._idle, self.waiting.matched = True, 0  # reading the inbox delays no iteration
        if len(self.waiting):
            self._wake_up.rest(self.scheduler, self.waiting)

    def _awake(self) -> None:
        if self._idle:
            self._idle = False
            self._decide()

    def _end_iteration(self) -> None:
        batch, done = self.batch, NOBODY
        if (due := batch.due) and due[0][0] <= batch.steps and (done := self._finished()):
            self._end_stretch()
        self._end_requests(done)

    def _end_requests(self, done: list[Sequence]) -> None:
        """End these sequences, read the inbox, and decide on the next iteration."""
        for sequence in done:
            self._release(sequence)
            self.cap.finish(sequence.request, sequence.produced)
            self.scheduler.on_output(sequence.request, sequence.produced)
            now_ps, first_ps = self._clock.now_ps, sequence.first_token_ps
            sequence.finish_ps = now_ps if now_ps > first_ps else first_ps
            sequence.status = FINISHED
            self.scheduler.on_finish(sequence.request)
        if self._inbox:
            self._hear_after(done)
        for sequence in done:
            sequence.on_done(sequence)
        self._clock.soon(DECIDE, self.index, self._decide)

    def _produce_first(self, sequence: Sequence) -> None:
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self.frontend.out_ps(self._clock.now_ps)
        sequence.produced += 1
        self.scheduler.on_tokens(sequence.request.client, 1)
        if self.scheduler.per_request_tokens:
            self.scheduler.on_request_tokens(sequence.request, 1)
        self._join(sequence)

    # Runs of decode steps.

    def _start_run(self, steps: int, saved_ps: int) -> None:
        """Start ``steps`` decode steps after their delays; each step saves ``saved_ps``."""
        batch, token_ps, start_ps = self.batch, self._token_ps, self._clock.now_ps
        copying_ps = self.host.delay_ps() if self.host.copied else 0
        if delay_ps := copying_ps + self.waiting.matching_ps():
            self._end_stretch()
            start_ps += delay_ps
        size, context = batch.size, batch.context_tokens
        self._context_tokens, self._fixed_ps = context, self._step_ps(size)
        first_ps = self._fixed_ps + token_ps * context - saved_ps
        self._run = run = DecodeRun(start_ps, first_ps, token_ps * size, steps)
        self._await_end(run)

    def _await_end(self, run: DecodeRun) -> None:
        self._end_ps = run.end_ps(run.steps)
        self._clock.at(self._end_ps, END, self.index, self._end_decode)

    def _stop_run(self, run: DecodeRun) -> None:
        """End the run at the next step boundary, which may be now."""
        self.sync()
        steps = self._next_boundary(run)
        if steps < run.steps:
            run.steps = steps
            self._await_end(run)

    def _next_boundary(self, run: DecodeRun) -> int:
        """Return after how many steps the next iteration ends. Precondition: ``sync``."""
        return 0 if run.start_ps == self._clock.now_ps else 1

    def _end_decode(self) -> None:
        run, now_ps = self._run, self._clock.now_ps
        if run is None or now_ps != self._end_ps:
            return  # a run that was planned to end now was stopped before
        self._run = None
        self._book_decode(run, run.steps, now_ps)
        self._end_iteration()

    def sync(self) -> None:
        """Update counters to the last boundary that a step-by-step run would have booked.

        A boundary at this instant counts if its event came before the current one.
        """
        if (run := self._run) is not None:
            past_ps = self._clock.past(END, self.index)
            steps, end_ps = run.steps_before(self._clock.now_ps + past_ps)
            if steps:
                self._book_decode(run, steps, end_ps)
                run.advance(steps, end_ps)

    def settle(self) -> None:
        self.sync()
        self._end_stretch()

    def _book_decode(self, run: DecodeRun, steps: int, end_ps: int) -> None:
        """Book ``steps`` steps of the run, which ended at ``end_ps``."""
        if not steps:
            return
        batch, stretch = self.batch, self._stretch
        self._provide(steps)
        if stretch is None:
            context, fixed_ps = self._context_tokens, self._fixed_ps
            stretch = self._stretch = Stretch(run.start_ps, run.growth_ps, context, fixed_ps)
        batch.step(steps, end_ps - run.start_ps, self._fixed_ps)
        stretch.steps += steps
        stretch.end_ps = end_ps
        batch.report(steps, self.scheduler)
        if self.scheduler.times_steps:
            batch.report_time(stretch, self.scheduler)

    def _end_stretch(self) -> None:
        if self._stretch is not None:
            batch = self.batch.by_client(self._stretch.steps)
            self._log.decode(self.index, self._stretch, batch)
            self._stretch = None
