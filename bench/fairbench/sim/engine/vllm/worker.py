"""A simulated vLLM worker (V1 engine, 0.32.0): each step mixes decoding and prefill chunks.

Steps that only decode, and in which nothing else can change, are one event. Steps follow each
other without overlap (vLLM's ``async_scheduling`` is off). Rules: docs/engine.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fairbench.core import PS_PER_S, Request
from fairbench.errors import RunFailed
from fairbench.hardware.timing import TimingProfile
from fairbench.hardware.vllm_limits import VLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import never
from fairbench.sim.clock import DECIDE, END, Clock
from fairbench.sim.engine.decode_run import DecodeRun
from fairbench.sim.engine.frontend import FrontendQueue
from fairbench.sim.engine.prefill import Prefill
from fairbench.sim.engine.vllm.admission import Admission
from fairbench.sim.engine.vllm.block_cache import BlockCache
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.booking import Booking
from fairbench.sim.engine.vllm.running import RunningList, RunningListView, Step
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.engine.wake import WakeUp
from fairbench.sim.records.service_log import PrefillShare, ServiceLog, Stretch
from fairbench.sim.sequence import FINISHED, NEVER, REFUSED, Sequence

__all__ = ["BlockCache", "VLLMLimits", "VLLMWorker"]


class VLLMWorker:
    """One replica. ``submit`` requests; their ``on_done`` is called when they are over."""

    def __init__(
        self,
        index: int,
        clock: Clock,
        scheduler: LocalScheduler,
        profile: TimingProfile,
        limits: VLLMLimits,
        log: ServiceLog,
        cache: BlockCache | None = None,
    ) -> None:
        self.index = index
        self.scheduler = scheduler
        self.limits = limits
        self.cache = cache or cache_of(limits)
        self.running = RunningList(self.cache, limits)
        self.batch = self.running.batch
        self.waiting: WaitingQueue[BlockNode] = WaitingQueue(self.cache, scheduler.cache_aware)
        self.waiting.running = RunningListView(self.running, self.cache)
        self.on_pass: Callable[[], None] | None = None  # after every decision what to run next
        self.frontend = FrontendQueue(clock, profile.frontend, index, self._arrive)
        self._clock = clock
        self._profile = profile
        self._log = log
        self._booking = Booking()
        self._admission = Admission(limits, self.running, self.waiting, self._booking)
        self._preempts = scheduler.preempts
        self._preempted: list[Sequence] = []  # in the pass under way, by the scheduler
        self._run: DecodeRun | None = None
        self._stretch: Stretch | None = None  # under way; written when the batch changes
        self._chunks: list[Prefill] = []  # in the step under way
        self._stalled: list[Sequence] = []  # in the step under way
        self._taken_ps = NEVER  # when a step last began for which memory had to be taken back
        self._idle = True
        self._wake_up = WakeUp(clock, index, self._awake)

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
        if self._run is not None and self._may_admit:
            self._stop_run(self._run)
        elif self._idle:
            self._idle = False
            self._clock.at(self._clock.now_ps, DECIDE, self.index, self._decide)

    def fits(self, request: Request) -> bool:
        """Whether the request could run here, were it alone. Its last token needs no memory."""
        tokens = request.input_tokens + request.max_new_tokens - 1
        return -(-tokens // self.limits.block_size) <= self.limits.blocks

    def sync(self) -> None:
        """Bring counters up to the last boundary that step by step would have been booked by now,
        and memory up to the last step that would have begun.
        """
        if (run := self._run) is None:
            return
        clock = self._clock
        now_ps = clock.now_ps
        begun = self.batch.steps + run.steps_before(now_ps + clock.past(DECIDE, self.index)) + 1
        last = self.batch.steps + run.steps
        self._book_decode(run, run.steps_before(now_ps + clock.past(END, self.index)))
        self.running.provide(min(begun, last))

    def settle(self) -> None:
        """``sync``, and write the stretch under way, which is the last: the simulation is over.

        A step that did not end has not happened: whom it admitted was not.
        """
        self.sync()
        self._end_stretch()
        for chunk in self._chunks:
            if chunk.first:
                self._booking.take_back(chunk.sequence, chunk.cached)

    @property
    def queued_count(self) -> int:
        """Requests that have come and do not run."""
        return len(self.frontend) + len(self.waiting)

    @property
    def running_count(self) -> int:
        """Requests that are prefilling or running."""
        return len(self.running)

    def in_flight(self) -> list[Sequence]:
        """Everything that is waiting, prefilling or running, in order of arrival."""
        waiting = [self.waiting.sequence_of(request) for request in self.waiting.queue_order()]
        return [*self.running.sequences, *waiting, *self.frontend]

    @property
    def _may_admit(self) -> bool:
        """Whether a pass over the waiting requests is made in the next step."""
        return self._preempts or len(self.running) < self.limits.max_num_seqs

    # A step is decided.

    def _decide(self) -> None:
        step = self._schedule()
        if step.chunks or step.stalled:
            self._start_mixed(step)
        elif step.decodes:
            self._start_decode()
        else:
            self._idle = True
            if len(self.waiting):
                self._wake_up.rest(self.scheduler, self.waiting)
        if self.on_pass is not None:
            self.on_pass()

    def _awake(self) -> None:
        if self._idle:
            self._idle = False
            self._decide()

    def _schedule(self) -> Step:
        """Fill a step. One that came out empty because of a preemption is followed by another."""
        while True:
            step = Step(self.limits.max_num_batched_tokens)
            self.running.schedule(step, self._take_back)
            if step.preempted:
                self._taken_ps = self._clock.now_ps
            elif len(self.waiting) and step.budget > 0 and self._may_admit:
                preempt = partial(self._preempt, step) if self._preempts else never
                self._admission.run(step, self.scheduler, self._clock.now_ps, preempt)
            preempted = step.preempted or bool(self._preempted)
            self._requeue_preempted()
            if step.chunks or step.decodes or not preempted:
                return step

    def _start_mixed(self, step: Step) -> None:
        """A step with prefill in it, or one that not all take part in."""
        self._end_stretch()
        for sequence in step.stalled:
            self.running.pause(sequence)
        self._stalled, self._chunks = step.stalled, step.chunks
        batch, chunks = self.batch, step.chunks
        computed = [(chunk.cached, chunk.tokens) for chunk in chunks]
        duration_ps = self._profile.step_ps(computed, step.decodes, batch.context_tokens)
        now_ps = self._clock.now_ps
        end = partial(self._end_mixed, step, now_ps, batch.context_tokens)
        self._clock.at(now_ps + duration_ps, END, self.index, end)

    def _end_mixed(self, step: Step, start_ps: int, context_tokens: int) -> None:
        now_ps, batch = self._clock.now_ps, self.batch
        shares = self._booking.shares(step.chunks)
        for client, count in batch.per_client.items():
            shares.setdefault(client, PrefillShare()).output_tokens += count
        size = len(step.chunks) + step.decodes
        self._log.prefill(self.index, start_ps, now_ps, size, shares, context_tokens)
        batch.steps += 1
        batch.report(1, self.scheduler)
        for chunk in step.chunks:
            chunk.sequence.filled += chunk.tokens
            if chunk.last:
                self._produce_first(chunk.sequence)
        for sequence in self._stalled:
            self.running.decode(sequence)
        self._stalled, self._chunks = [], []
        self._end_step()

    def _produce_first(self, sequence: Sequence) -> None:
        """Its prompt is complete, which yields a token."""
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self.frontend.out_ps(self._clock.now_ps)
        sequence.produced += 1
        self.scheduler.on_tokens(sequence.request.client, 1)
        if self.scheduler.per_request_tokens:
            self.scheduler.on_request_tokens(sequence.request, 1)
        self.running.decode(sequence)

    def _end_step(self) -> None:
        done = self.running.finished()
        if done:
            self._end_stretch()
        for sequence in done:
            self._finish(sequence)
        for sequence in done:
            sequence.on_done(sequence)
        self._clock.soon(DECIDE, self.index, self._decide)

    def _finish(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._booking.finish(sequence)
        sequence.finish_ps = max(self._clock.now_ps, sequence.first_token_ps)
        sequence.status = FINISHED
        self.scheduler.on_finish(sequence.request)

    # Steps that only decode.

    def _start_decode(self) -> None:
        """All that can be foreseen: until one ends, blocks run out, or one waiting may enter.

        Whoever hears of evictions hears of each when it happens: then one ends the run too.
        """
        batch, cache = self.batch, self.cache
        size, steps = len(batch), batch.steps_to_finish()
        if self.limits.step_by_step or (len(self.waiting) and self._may_admit):
            steps = 1
        blocks = cache.free_blocks if cache.on_evict is None else cache.blank
        steps = 1 + self.running.steps_ahead(blocks, steps - 1)
        first_ps = self._profile.decode_ps(size, batch.context_tokens)
        growth_ps = self._profile.context_ps * size
        self._run = DecodeRun(self._clock.now_ps, first_ps, growth_ps, steps)
        self._await_end(self._run)

    def _await_end(self, run: DecodeRun) -> None:
        self._clock.at(run.end_ps(run.steps), END, self.index, partial(self._end_decode, run))

    def _stop_run(self, run: DecodeRun) -> None:
        """End the run at the first boundary from now on, which may be now."""
        now_ps = self._clock.now_ps
        steps = 0 if run.start_ps == now_ps != self._taken_ps else 1
        if steps < run.steps:
            run.steps = steps
            self._await_end(run)

    def _end_decode(self, run: DecodeRun) -> None:
        if run is not self._run:
            return  # it was stopped before this, its planned end
        self._run = None
        self._book_decode(run, run.steps)
        self._end_step()

    def _book_decode(self, run: DecodeRun, steps: int) -> None:
        """``steps`` steps of the run are done."""
        if not steps:
            return
        batch = self.batch
        self.running.provide(batch.steps + steps)
        if self._stretch is None:
            self._stretch = Stretch(run.start_ps, run.growth_ps, batch.context_tokens)
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

    # Memory taken back.

    def _take_back(self) -> Sequence:
        """Preempt the last in the running list, or whom the scheduler names first."""
        victim = self.running.sequences[-1]
        if self.scheduler.orders_retraction:
            victim = self._first_to_go()
        self._leave(victim)
        self._wait_again(victim)
        return victim

    def _first_to_go(self) -> Sequence:
        of_request = {sequence.request: sequence for sequence in self.running.sequences}
        order = self.scheduler.retraction_order(self.waiting.running)
        if len(order) != len(of_request) or set(order) != set(of_request):
            raise RunFailed(
                f"{self.scheduler.name}: its retraction order must have every running request once"
            )
        return of_request[order[0]]

    def _leave(self, sequence: Sequence) -> None:
        """Take a running request's memory back. Its full blocks stay cached."""
        self._end_stretch()
        self._booking.preempt(sequence, sequence in self.batch.sequences)
        self.running.remove(sequence)
        sequence.retract(self._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        """What was preempted waits at the head of the queue."""
        now_s = self._clock.now_ps / PS_PER_S
        self.scheduler.on_retract(sequence.request, self.waiting, now_s)
        self.waiting.enter(sequence, first=True)

    def _preempt(self, step: Step, request: Request) -> bool:
        """Preempt at the scheduler's wish what ran before this pass. False: it does not run."""
        sequence = next((s for s in self.running.sequences if s.request is request), None)
        if sequence is None:
            return False
        chunk = next((chunk for chunk in step.chunks if chunk.sequence is sequence), None)
        if chunk is not None and chunk.first:
            return False  # this pass has admitted it
        if chunk is not None:
            step.chunks.remove(chunk)
            step.budget += chunk.tokens
        elif sequence in self.batch.sequences:
            step.decodes -= 1
            step.budget += 1
        self._leave(sequence)
        self._preempted.append(sequence)
        return True

    def _requeue_preempted(self) -> None:
        preempted, self._preempted = self._preempted, []
        for sequence in preempted:
            self._wait_again(sequence)


def cache_of(limits: VLLMLimits) -> BlockCache:
    """An empty KV pool as the limits have it."""
    return BlockCache(limits.blocks, limits.block_size, prefix_caching=limits.enable_prefix_caching)
