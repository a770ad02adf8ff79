"""The main loop of a simulated engine, and a model of the HTTP server and tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Generic

from fairbench.compiled import mypyc_attr
from fairbench.core import PS_PER_S, Request
from fairbench.engine.batch import DecodeRun, Prefill, RunningBatch, report_prompts, shares_of
from fairbench.engine.clock import ARRIVE, DECIDE, END, Clock
from fairbench.engine.contract import WorkerParts
from fairbench.engine.kv_cache import N
from fairbench.engine.logs import PrefillShare, Stretch
from fairbench.engine.sequence import FINISHED, NEVER, HostMemory, Sequence
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.hardware.engine_params import LoadCapSetting
from fairbench.hardware.gpu_time import PS_PER_MS, prompt_parts, step_parts
from fairbench.hardware.timing import Frontend, ProfileCosts
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import Preempt, Tried, drive
from fairbench.schedulers.load_cap import load_cap
from fairbench.schedulers.views import Room, WaitingView

if TYPE_CHECKING:
    from fairbench.schedulers.memory_share import MemoryShare


class FrontendQueue:
    """A simulation of the engine process that serves HTTP and tokenizes prompts.

    Requests are processed one at a time in order of arrival. While the HTTP process works on one
    request, the next request and first tokens of outputs wait. The delay of an output on its way to
    the client is modelled as a delay of the request; the effect on latencies is the same.
    """

    def __init__(
        self, clock: Clock, costs: Frontend, key: int, pass_on: Callable[[Sequence], None]
    ) -> None:
        self._clock = clock
        self._costs = costs
        self._is_free = costs == Frontend()
        self._delay_ps = round(costs.delay_ms * PS_PER_MS)
        self._key = key
        self._pass_on = pass_on
        self._free_ps = 0
        self._held: dict[Sequence, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._held)

    def enter(self, sequence: Sequence) -> None:
        if self._is_free:
            self._pass_on(sequence)
            return
        costs, start_ps = self._costs, self._clock.now_ps
        if start_ps < self._free_ps:
            start_ps = self._free_ps
        turn_ms = costs.request_ms + costs.token_ms * sequence.request.input_tokens
        self._free_ps = start_ps + round(turn_ms * PS_PER_MS)
        self._held[sequence] = None
        leave = partial(self._leave, sequence)
        self._clock.at(self._free_ps + self._delay_ps, ARRIVE, self._key, leave)

    def out_ps(self, now_ps: int) -> int:
        """Return the time (ps) at which a token that is ready at ``now_ps`` is sent."""
        return now_ps if now_ps > self._free_ps else self._free_ps

    def withdraw(self, sequence: Sequence) -> bool:
        """Remove a request; return False if the request is not in the queue."""
        return self._held.pop(sequence, sequence) is None

    def _leave(self, sequence: Sequence) -> None:
        if sequence in self._held:
            del self._held[sequence]
            self._pass_on(sequence)


class WakeUp:
    """An alarm that wakes a scheduler that lets requests wait although the worker is idle.

    The alarm calls ``awake`` at the time that the scheduler's ``wake_s`` returns.
    """

    def __init__(self, clock: Clock, index: int, awake: Callable[[], None]) -> None:
        self._clock = clock
        self._index = index
        self._awake = awake
        self._wake_ps: int | None = None

    def rest(self, scheduler: LocalScheduler, waiting: WaitingView) -> None:
        """Wake an idle worker at the time that the scheduler's ``wake_s`` returns, if any."""
        if scheduler.work_conserving:
            return
        now_ps = self._clock.now_ps
        wake_s = scheduler.wake_s(waiting, now_ps / PS_PER_S)
        if wake_s is None:
            return
        time_ps = max(now_ps + 1, ceil(wake_s * PS_PER_S))
        if self._wake_ps is None or not now_ps < self._wake_ps <= time_ps:
            self._wake_ps = time_ps
            self._clock.at(time_ps, DECIDE, self._index, self._wake)

    def _wake(self) -> None:
        if self._clock.now_ps == self._wake_ps:
            self._wake_ps = None
            self._awake()


NOBODY: list[Sequence] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class EngineLoop(ABC, Generic[N]):
    """The loop of iterations that all simulated replicas share."""

    # CPython 3.11 is slow with objects of more than 30 attributes unless they have slots.
    __slots__ = (
        "_blocked", "_clock", "_computes_prompts", "_context_tokens", "_costs", "_end_ps",
        "_fixed_ps", "_idle", "_inbox", "_log", "_passed", "_preempts", "_profile", "_run",
        "_step_ps", "_stretch", "_token_ps", "_wake_up", "batch", "cap", "frontend", "host",
        "index", "on_pass", "scheduler", "share", "waiting",
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
        # ``share``, if set, hides requests of clients above their memory share from the scheduler.
        self.share: MemoryShare | None = None
        # ``on_pass`` is called each time the replica has decided on its next step.
        self.on_pass: Callable[[], None] | None = None
        self.frontend = FrontendQueue(clock, profile.frontend, index, self._arrive)
        self._clock, self._profile, self._log = clock, profile, parts.log
        # Step times are copied from the profile, whose cached properties are slow to read.
        self._step_ps, self._token_ps = profile.fixed_ps, profile.context_ps
        self._preempts = parts.scheduler.preempts
        self._inbox: list[Sequence] = []
        self._run: DecodeRun | None = None
        # ``_end_ps`` is the planned end of the current series of decode steps.
        self._end_ps = NEVER
        # ``_fixed_ps`` is the time of a step without context, and ``_context_tokens`` is the
        # batch's context at the start of the current series of decode steps.
        self._fixed_ps = self._context_tokens = 0
        # ``_stretch`` is the series of decode steps since the batch last changed. The series is
        # logged when the batch changes again.
        self._stretch: Stretch | None = None
        self._idle = True
        self._computes_prompts = False
        self._wake_up = WakeUp(clock, index, self._awake)
        # ``_passed`` is the value of ``batch.steps`` at the last scheduling pass that blocked the
        # worker.
        self._passed = 0
        # ``_blocked`` is true if the scheduling pass blocks the worker. Every pass of a scheduler
        # without ``pass_s`` blocks the worker.
        self._blocked = True

    @abstractmethod
    def fits(self, request: Request) -> bool:
        """Return whether the request could run alone on this worker."""

    @property
    @abstractmethod
    def _may_admit(self) -> bool:
        """Return whether the next pass may admit waiting requests."""

    @abstractmethod
    def _start(self) -> bool:
        """Begin an iteration; return False if no work remains."""

    def _running(self) -> list[Sequence]:
        return list(self.batch.sequences)

    def _finished(self) -> list[Sequence]:
        """Return the sequences that ended with the last iteration."""
        return self.batch.finished()

    @abstractmethod
    def _release(self, sequence: Sequence) -> None:
        """Remove a finished sequence from the batch, and free its memory."""

    def _join(self, sequence: Sequence) -> None:
        self.batch.join(sequence)

    @abstractmethod
    def _provide(self, steps: int) -> None:
        """Allocate memory for the tokens of ``steps`` finished decode steps."""

    def _select(
        self,
        prefilling: Iterable[Sequence],
        try_admit: Callable[[Request], Tried],
        preempt: Callable[[Preempt], bool],
    ) -> None:
        """Let the scheduler choose waiting requests of clients within their memory shares.

        ``prefilling`` contains the running requests with incomplete prompts.
        """
        view: WaitingView = self.waiting
        if self.share is not None:
            pending = Counter[str]()
            for one in prefilling:
                pending[one.request.client] += one.total - one.filled
            view = self.share.begin(self.waiting, pending)
            if not view.clients():
                return
            # ``select`` may leave out delayed charges of clients that are not in ``view``. A call
            # of ``balances`` makes the scheduler apply the delayed charges of all clients.
            self.scheduler.balances()
        now_s = self._clock.now_ps / PS_PER_S
        drive(self.scheduler.select(view, now_s), try_admit, preempt)

    # Arrivals

    def submit(self, sequence: Sequence) -> None:
        sequence.worker = self.index
        self.frontend.enter(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        """Add an arriving request to the engine's inbox, or refuse the request.

        A request is refused if it can never fit, or if the scheduler refuses it.
        """
        now_s = self._clock.now_ps / PS_PER_S
        if not self.fits(sequence.request) or not self.scheduler.accepts(sequence.request, now_s):
            sequence.refuse()
            return
        self._inbox.append(sequence)
        if self._computes_prompts:
            return
        if (run := self._run) is None:
            self._read_inbox()
        elif self._may_admit:
            self._stop_run(run)
        else:
            self.sync()
            at_ps = run.end_ps(self._next_boundary(run))
            self._clock.at(at_ps, END, self.index, partial(self._read_inbox_within, run))
        if self._idle:
            self.wake()

    def wake(self) -> None:
        """Let an idle worker decide on an iteration now."""
        if self._idle:
            self._idle = False
            self._clock.at(self._clock.now_ps, DECIDE, self.index, self._decide)

    def wake_if_waiting(self) -> None:
        """Let an idle worker retry its waiting requests after another worker freed memory."""
        if len(self.waiting):
            self.wake()

    def _read_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        now_s = self._clock.now_ps / PS_PER_S
        for sequence in inbox:
            self.scheduler.on_arrival(sequence.request, self.waiting, now_s)
            self.waiting.enter(sequence)

    def _read_inbox_after(self, done: list[Sequence]) -> None:
        self._read_inbox()

    def _read_inbox_within(self, run: DecodeRun) -> None:
        """Read arrived requests after a decode step of ``run``, unless the step was the last."""
        if run is self._run:
            self.sync()
            if run.steps:
                self._read_inbox()

    @property
    def queued_count(self) -> int:
        return len(self.frontend) + len(self._inbox) + len(self.waiting)

    @property
    def running_count(self) -> int:
        return len(self._running())

    @property
    def saturated(self) -> bool:
        return len(self.waiting) > 0 and not self._may_admit

    @property
    def room(self) -> Room | None:
        return None

    def in_flight(self) -> list[Sequence]:
        waiting = [self.waiting.sequence_of(request) for request in self.waiting.queue_order()]
        return [*self._running(), *waiting, *self._inbox, *self.frontend]

    # Iterations

    def _decide(self) -> None:
        self._blocked = self.scheduler.pass_s is None
        if not self._start():
            self._rest()
        if self.on_pass is not None and (self._blocked or self._idle):
            self.on_pass()

    def _rest(self) -> None:
        # An idle worker matches arriving requests with its cache without delaying an iteration.
        self._idle, self.waiting.matched = True, 0
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
        for sequence in done:
            self._release(sequence)
            self.cap.finish(sequence.request, sequence.produced)
            self.scheduler.on_output(sequence.request, sequence.produced)
            now_ps, first_ps = self._clock.now_ps, sequence.first_token_ps
            sequence.finish_ps = now_ps if now_ps > first_ps else first_ps
            sequence.status = FINISHED
            self.scheduler.on_finish(sequence.request)
        if self._inbox:
            self._read_inbox_after(done)
        for sequence in done:
            sequence.on_done(sequence)
        self._clock.soon(DECIDE, self.index, self._decide)

    def _end_prompts(self, prefills: list[Prefill], start_ps: int) -> None:
        now_ps = self._clock.now_ps
        parts = prompt_parts(self._costs, now_ps - start_ps, [one.chunk for one in prefills])
        report_prompts(prefills, parts, self.scheduler)
        for prefill in prefills:
            self._produce_first(prefill.sequence)
        shares = shares_of(prefills, parts)
        self._log.prefill(self.index, start_ps, now_ps, len(prefills), shares)
        self._end_iteration()

    def _produce_first(self, sequence: Sequence) -> None:
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self.frontend.out_ps(self._clock.now_ps)
        sequence.produced += 1
        self.scheduler.on_tokens(sequence.request.client, 1)
        if (charge_tokens := self.scheduler.on_request_tokens) is not None:
            charge_tokens(sequence.request, 1)
        self._join(sequence)

    def _book_mixed(
        self,
        chunks: list[Prefill],
        start_ps: int,
        context_tokens: int,
        saved_ps: int,
        shares_of: Callable[[list[Prefill], list[int]], dict[str, PrefillShare]],
    ) -> None:
        """Record an iteration that computed prompt chunks while the batch decoded.

        Args:
            saved_ps: Time (ps) that the iteration saved, compared with the timing profile.
            shares_of: Function that returns each client's ``PrefillShare``, given prompt chunks and
                the GPU time of each chunk.
        """
        now_ps, batch, scheduler = self._clock.now_ps, self.batch, self.scheduler
        computed, decoding = [chunk.chunk for chunk in chunks], batch.decoding()
        parts = step_parts(self._costs, now_ps - start_ps, computed, decoding, saved_ps)
        shares = shares_of(chunks, parts.chunks)
        for client, gpu_ps in parts.clients.items():
            share = shares.setdefault(client, PrefillShare())
            share.output_tokens += decoding[client].requests
            share.gpu_ps += gpu_ps
        size = len(chunks) + batch.size
        self._log.prefill(self.index, start_ps, now_ps, size, shares, context_tokens)
        batch.step(1, parts.decode_ps, parts.decode_fixed_ps)
        batch.report(1, scheduler)
        report_prompts(chunks, parts.chunks, scheduler)
        if (charge_time := scheduler.on_gpu_time) is not None:
            for client, gpu_ps in parts.clients.items():
                charge_time(client, gpu_ps)

    def _delay_ps(self, *, prompts: bool = False) -> int:
        """Return the delay (ps) of the iteration by copies, prefix matching and a scheduling pass.

        ``prompts`` is true if the next iteration is a prefill iteration.
        """
        copying_ps = self.host.delay_ps() if self.host.copied else 0
        delay_ps = copying_ps + self.waiting.matching_ps()
        if (pass_s := self.scheduler.pass_s) is None:
            return delay_ps
        if not prompts and self.batch.steps - self._passed < self.scheduler.steps_per_pass:
            return delay_ps
        self._passed, self._blocked = self.batch.steps, True
        return delay_ps + round(pass_s() * PS_PER_S)

    # Decode steps

    def _start_run(self, steps: int, saved_ps: int) -> None:
        """Start a series of decode steps, after the delays that ``_delay_ps`` computes.

        Each step takes ``saved_ps`` less time than in the timing profile.
        """
        batch, token_ps, start_ps = self.batch, self._token_ps, self._clock.now_ps
        if delay_ps := self._delay_ps():
            self._end_stretch()
            start_ps += delay_ps
        # A scheduling pass blocks the worker, so a series of decode steps ends at the next pass.
        if self.scheduler.pass_s is not None:
            steps = min(steps, self._passed + self.scheduler.steps_per_pass - batch.steps)
        size, context = batch.size, batch.context_tokens
        self._context_tokens, self._fixed_ps = context, self._step_ps(size)
        first_ps = self._fixed_ps + token_ps * context - saved_ps
        self._run = run = DecodeRun(start_ps, first_ps, token_ps * size, steps)
        self._await_end(run)

    def _await_end(self, run: DecodeRun) -> None:
        self._end_ps = run.end_ps(run.steps)
        self._clock.at(self._end_ps, END, self.index, self._end_decode)

    def _stop_run(self, run: DecodeRun) -> None:
        """End a series of decode steps after the step in progress."""
        self.sync()
        steps = self._next_boundary(run)
        if steps < run.steps:
            run.steps = steps
            self._await_end(run)

    def _next_boundary(self, run: DecodeRun) -> int:
        """Return 1 if a decode step is in progress, or 0 if a step begins at the current time.

        Precondition: ``sync`` was called.
        """
        return 0 if run.start_ps == self._clock.now_ps else 1

    def _end_decode(self) -> None:
        run, now_ps = self._run, self._clock.now_ps
        if run is None or now_ps != self._end_ps:
            # This event belongs to a series of decode steps that was stopped, so ignore it.
            return
        self._run = None
        self._book_decode(run, run.steps, now_ps)
        self._end_iteration()

    def sync(self) -> None:
        """Record all decode steps that have ended.

        A step that ends exactly at the current time is included if its event precedes the event
        that is being handled.
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
        if not steps:
            return
        batch, stretch = self.batch, self._stretch
        self._provide(steps)
        if self.scheduler.on_iteration is not None:
            self.scheduler.on_iteration(0, run.start_ps, end_ps)
        if stretch is None:
            context, fixed_ps = self._context_tokens, self._fixed_ps
            stretch = self._stretch = Stretch(run.start_ps, run.growth_ps, context, fixed_ps)
        batch.step(steps, end_ps - run.start_ps, self._fixed_ps)
        stretch.steps += steps
        stretch.end_ps = end_ps
        batch.report(steps, self.scheduler)
        if (charge_time := self.scheduler.on_gpu_time) is not None:
            batch.report_time(stretch, charge_time)

    def _end_stretch(self) -> None:
        if self._stretch is not None:
            batch = self.batch.by_client(self._stretch.steps)
            self._log.decode(self.index, self._stretch, batch)
            self._stretch = None
