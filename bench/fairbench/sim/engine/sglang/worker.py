"""A simulated worker: SGLang's scheduling loop, advanced from event to event.

Between two boundaries at which something can change, k decode steps are one event. Overlap
scheduling is off. Rules: docs/engine.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fairbench.core import PS_PER_S, Request, Segment
from fairbench.hardware.engine_limits import EngineLimits
from fairbench.hardware.timing import TimingProfile
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import never
from fairbench.sim.clock import DECIDE, END, Clock
from fairbench.sim.engine.batch import CLIP_MAX_NEW_TOKENS, RunningBatch
from fairbench.sim.engine.decode_run import DecodeRun
from fairbench.sim.engine.frontend import FrontendQueue
from fairbench.sim.engine.kv_cache import KVCache
from fairbench.sim.engine.prefill import Prefill
from fairbench.sim.engine.running_view import BatchView
from fairbench.sim.engine.sglang.admission import PrefillPass, run_selection, shares_of
from fairbench.sim.engine.sglang.pass_interval import PassInterval
from fairbench.sim.engine.sglang.retraction import Retraction
from fairbench.sim.engine.sglang.sequence_memory import store_outputs, store_prompt
from fairbench.sim.engine.sglang.token_ratio import NewTokenRatio
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.engine.wake import WakeUp
from fairbench.sim.records.service_log import ServiceLog, Stretch
from fairbench.sim.sequence import FINISHED, NEVER, REFUSED, UNFINISHED, Sequence


class Worker:
    """One replica. ``submit`` requests; their ``on_done`` is called when they are over."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        scheduler: LocalScheduler,
        profile: TimingProfile,
        limits: EngineLimits,
        log: ServiceLog,
        cache: KVCache,
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self.limits = limits
        self.cache = cache
        self.batch = RunningBatch()
        in_batch = limits.in_batch_prefix_caching
        self.waiting = WaitingQueue(cache, scheduler.cache_aware, in_batch=in_batch)
        self.waiting.running = BatchView(self.batch, lambda: cache.free + cache.evictable)
        self.on_pass: Callable[[], None] | None = None  # after every decision what to run next
        self.frontend = FrontendQueue(clock, profile.frontend, index, self._arrive)
        self._clock = clock
        self._profile = profile
        self._log = log
        self._ratio = NewTokenRatio(limits.schedule_conservativeness, limits.full_reservation)
        self._passes = PassInterval(limits.num_continuous_decode_steps)
        self._batch_is_full = False  # no pass until a request leaves, unless one may preempt
        self._preempts = scheduler.preempts
        self._chunked: Sequence | None = None
        self._run: DecodeRun | None = None
        self._prefills: list[Prefill] = []
        self._prefill_start_ps = 0
        self._preempted: list[Sequence] = []  # in the pass under way
        self._retraction = Retraction(
            clock, lambda: self.scheduler, self.batch, self.waiting, cache
        )
        self._idle = True
        self._wake_up = WakeUp(clock, index, self._awake)
        self._stretch: Stretch | None = None  # under way; written when the batch changes

    # Arrivals.

    def submit(self, sequence: Sequence) -> None:
        """A request arrives. One that can never fit, or is over a rate limit, is refused."""
        sequence.worker = self.index
        self.frontend.enter(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        """It has come through to the scheduler."""
        request = sequence.request
        now_s = self._clock.now_ps / PS_PER_S
        if not self.fits(request) or not self.scheduler.accepts(request, now_s):
            sequence.status = REFUSED
            sequence.on_done(sequence)
            return
        self.sync()
        self.scheduler.on_arrival(request, self.waiting, now_s)
        self.waiting.enter(sequence)
        if self._run is not None and (self._preempts or not self._batch_is_full):
            self._stop_run(self._run)
        elif self._idle:
            self._idle = False
            self._clock.at(self._clock.now_ps, DECIDE, self.index, self._decide)

    def fits(self, request: Request) -> bool:
        """Whether the request could run here, were it alone."""
        return request.input_tokens + request.max_new_tokens + 1 < self.limits.pool_tokens

    def abort(self, sequence: Sequence) -> None:
        """Nobody wants it any more: one that waits leaves at once, refused.

        One that runs ends with the step under way, one whose prompt is being computed when that is
        done: as FINISHED, and what it has produced stays cached.
        """
        if sequence.status != UNFINISHED:
            return
        self.sync()
        if self.frontend.withdraw(sequence):
            sequence.status = REFUSED
            sequence.on_done(sequence)
        elif sequence in self.batch.sequences:
            if self._run is not None:
                self._stop_run(self._run)
            self.batch.cut(sequence, self._run.steps if self._run is not None else 0)
        elif sequence.request in self.waiting:
            self.waiting.withdraw(sequence.request)
            sequence.status = REFUSED
            self.scheduler.on_finish(sequence.request)
            sequence.on_done(sequence)
        else:
            sequence.output = Segment(sequence.output.key, sequence.produced + 1)

    def step_end_ps(self, steps: int) -> int | None:
        """When so many more decode steps end, or the run under way, if that is sooner.

        None if there is none. Precondition: ``sync``.
        """
        return None if self._run is None else self._run.end_ps(min(steps, self._run.steps))

    def sync(self) -> None:
        """Bring counters up to the last boundary that step by step would have been booked by now.

        One at this very instant has, if its event came before the one that runs.
        """
        if (run := self._run) is None:
            return
        clock = self._clock
        if steps := run.steps_before(clock.now_ps + clock.past(END, self.index)):
            self._book_decode(run, steps)

    def settle(self) -> None:
        """``sync``, and write the stretch under way, which is the last: the simulation is over.

        An iteration that did not end has not happened: whom it admitted was not.
        """
        self.sync()
        self._end_stretch()
        for prefill in self._prefills:
            if prefill.first:
                prefill.sequence.not_admitted(prefill.cached)

    def _stop_run(self, run: DecodeRun) -> None:
        """End the run at the first boundary from now on, which may be now."""
        steps = 0 if run.start_ps == self._clock.now_ps else 1
        if steps < run.steps:
            run.steps = steps
            self._await_end(run)

    @property
    def running_count(self) -> int:
        """Requests that are prefilling or running."""
        chunked = self._chunked is not None and all(
            prefill.sequence is not self._chunked for prefill in self._prefills
        )
        return len(self.batch) + len(self._prefills) + chunked

    def in_flight(self) -> list[Sequence]:
        """Everything that is waiting, prefilling or running, in order of arrival."""
        waiting = [self.waiting.sequence_of(request) for request in self.waiting.queue_order()]
        prefilling = [p.sequence for p in self._prefills]
        chunked = [self._chunked] if self._chunked and self._chunked not in prefilling else []
        return [*self.batch.sequences, *prefilling, *chunked, *waiting, *self.frontend]

    # The loop.

    def _end_iteration(self) -> None:
        done = self.batch.finished()
        if done:
            self._batch_is_full = False  # they leave SGLang's batch before its next pass
            self._end_stretch()
        for sequence in done:
            self._finish(sequence)
        for sequence in done:
            sequence.on_done(sequence)
        self._clock.soon(DECIDE, self.index, self._decide)

    def _decide(self) -> None:
        if not self.batch.sequences:
            self._batch_is_full = False
        if not (self._start_prefill() or self._start_decode()):
            self._rest()
        if self.on_pass is not None:
            self.on_pass()

    def _rest(self) -> None:
        """Nothing runs. Who waits was left out by the scheduler's own wish."""
        self._idle = True
        if not len(self.waiting):
            self._ratio.reset(self.batch.steps)
        else:
            self._wake_up.rest(self.scheduler, self.waiting)

    def _awake(self) -> None:
        if self._idle:
            self._idle = False
            self._decide()

    # Prefill.

    def _start_prefill(self) -> bool:
        if not self._passes.is_due(self.batch.steps, decoding=bool(self.batch.sequences)):
            return False
        if self._chunked is None:
            if not len(self.waiting):
                return False
            if self._batch_is_full and not self._preempts:
                return False
            if len(self.batch.sequences) >= self.limits.max_running_requests and not self._preempts:
                self._batch_is_full = True
                return False
        if not self.scheduler.cache_aware:
            self.waiting.pass_unmatched()
        attempt = self._fill_pass()
        if not attempt.admitted:
            return bool(self._preempted) and self._requeue_preempted() and self._start_prefill()
        if self._preempted:
            self._requeue_preempted()
        self._prefills = attempt.admitted
        self._prefill_start_ps = self._clock.now_ps
        chunks = []
        for prefill in attempt.admitted:
            prefill.sequence.private += prefill.tokens
            self.cache.allocate(prefill.tokens)
            chunks.append((prefill.cached, prefill.tokens))
        duration = self._profile.prefill_ps(chunks)
        self._end_stretch()
        self._clock.at(self._clock.now_ps + duration, END, self.index, self._end_prefill)
        return True

    def _fill_pass(self) -> PrefillPass:
        limits = self.limits
        reserved = self.batch.reserved_tokens() * self._ratio.at(self.batch.steps)
        attempt = PrefillPass(
            self.cache, reserved, limits.max_prefill_tokens, limits.chunked_prefill_size
        )
        if self._chunked is not None:
            attempt.continue_chunk(self._chunked)
        no_slots = run_selection(
            attempt,
            self.scheduler,
            self.waiting,
            self.batch,
            limits.max_running_requests,
            self._clock.now_ps,
            partial(self._preempt, attempt) if self._preempts else never,
        )
        if no_slots or (attempt.out_of_memory and (attempt.admitted or len(self.batch.sequences))):
            self._batch_is_full = True
        self._chunked = attempt.chunked
        return attempt

    def _end_prefill(self) -> None:
        """Put prompts into the tree, join the batch, book the iteration."""
        now_ps = self._clock.now_ps
        prefills, self._prefills = self._prefills, []
        if self._chunked is not None or not self.batch.sequences:
            # SGLang's batch sheds the unfinished request, or replaces an empty one, and with it
            # the flag: a pass is made although the last one found no room.
            self._batch_is_full = False
        for prefill in prefills:
            sequence = prefill.sequence
            store_prompt(self.cache, sequence, prefill.tokens)
            if not prefill.last:
                continue
            if sequence.first_token_ps == NEVER:
                sequence.first_token_ps = self.frontend.out_ps(now_ps)
            sequence.produced += 1
            self.scheduler.on_tokens(sequence.request.client, 1)
            if self.scheduler.per_request_tokens:
                self.scheduler.on_request_tokens(sequence.request, 1)
            self.batch.join(sequence)
        start_ps, shares = self._prefill_start_ps, shares_of(prefills)
        self._log.prefill(self.index, start_ps, now_ps, len(prefills), shares)
        self._end_iteration()

    # Decode.

    def _start_decode(self) -> bool:
        batch, cache = self.batch, self.cache
        size = len(batch.sequences)
        if not size:
            return False
        if size > cache.free + cache.evictable:
            self._retract()
            size = len(batch.sequences)
        if size > cache.free:
            cache.evict(size - cache.free)
        steps = min(batch.steps_to_finish(), cache.free // size)
        if self.limits.step_by_step:
            steps = 1
        elif len(self.waiting) and (self._preempts or not self._batch_is_full):
            steps = min(steps, self._passes.left(batch.steps))
        # Each token once, with those that this step makes room for.
        held = cache.capacity - cache.free - cache.evictable + size
        first_ps = self._profile.decode_ps(size, batch.context_tokens)
        first_ps -= self._profile.saved_ps(max(0, batch.context_tokens - held))
        growth_ps = self._profile.context_ps * size
        self._run = DecodeRun(self._clock.now_ps, first_ps, growth_ps, steps)
        self._await_end(self._run)
        return True

    def _await_end(self, run: DecodeRun) -> None:
        self._clock.at(run.end_ps(run.steps), END, self.index, partial(self._end_decode, run))

    def _end_decode(self, run: DecodeRun) -> None:
        if run is not self._run:
            return  # it was stopped before this, its planned end
        self._run = None
        self._book_decode(run, run.steps)
        self._end_iteration()

    def _book_decode(self, run: DecodeRun, steps: int) -> None:
        """``steps`` steps of the run are done."""
        if not steps:
            return
        batch = self.batch
        if self._stretch is None:
            self._stretch = Stretch(run.start_ps, run.growth_ps, batch.context_tokens)
        self.cache.allocate(steps * len(batch.sequences))
        batch.steps += steps
        run.advance(steps)
        self._stretch.steps += steps
        self._stretch.end_ps = run.start_ps
        batch.report(steps, self.scheduler)

    def _end_stretch(self) -> None:
        """The batch is about to change."""
        if self._stretch is not None:
            self._log.decode(self.index, self._stretch, self.batch.per_client)
            self._stretch = None

    def _retract(self) -> None:
        """Take memory back until the next decode step fits."""
        self._end_stretch()
        self._retraction.until_a_step_fits()
        self._ratio.after_retraction(self.batch)
        self._batch_is_full = False

    def _preempt(self, attempt: PrefillPass, request: Request) -> bool:
        """Take a running request's memory back, at its scheduler's wish. False: it does not run."""
        sequence = next((one for one in self.batch.sequences if one.request is request), None)
        if sequence is None:
            return False
        self._end_stretch()
        produced = self.batch.produced(sequence)
        to_go = min(request.max_new_tokens - produced, CLIP_MAX_NEW_TOKENS)
        attempt.give_back(to_go * self._ratio.at(self.batch.steps))
        self._retraction.take_back(sequence)
        self._preempted.append(sequence)
        return True

    def _requeue_preempted(self) -> bool:
        """The pass is over: what it preempted waits again. Whether nothing else is running."""
        preempted, self._preempted = self._preempted, []
        for sequence in preempted:
            self._retraction.wait_again(sequence)
        self._batch_is_full = False
        return not len(self.batch)

    def _finish(self, sequence: Sequence) -> None:
        self.batch.leave(sequence)
        sequence.finish_ps = max(self._clock.now_ps, sequence.first_token_ps)
        sequence.status = FINISHED
        store_outputs(self.cache, sequence)
        self.scheduler.on_finish(sequence.request)
