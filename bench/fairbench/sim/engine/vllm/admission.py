"""The second part of a vLLM step: admission of waiting requests, and preemption."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import PS_PER_S, Request
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import ADMITTED, LAST, NO_ROOM, OVER, Preempt, Tried, drive, never
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.prefill import Prefill, book_admission, shares_of
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.running import RunningList, Step
from fairbench.sim.engine.waiting import retraction_order
from fairbench.sim.records.service_log import PrefillShare
from fairbench.sim.sequence import NEVER, Sequence


class Booking:
    """A log that separates first computations from repeated ones.

    A request may lose its memory while its prompt is being computed; the rest of that prompt is
    then still computed for the first time.
    """

    def __init__(self) -> None:
        self._reached: dict[Sequence, int] = {}  # tokens of a preempted prompt computed before

    def admit(self, sequence: Sequence, scheduler: LocalScheduler, now_ps: int) -> None:
        """Call ``book_admission`` with the never computed tokens of a preempted prompt."""
        fresh = self._fresh(sequence, sequence.filled, sequence.total - sequence.filled)
        book_admission(sequence, scheduler, now_ps, fresh)

    def take_back(self, sequence: Sequence, cached_tokens: int) -> None:
        """Undo ``admit``, because the run ended before the step."""
        if not sequence.retractions:
            sequence.not_admitted(cached_tokens)
            return
        extend = sequence.total - cached_tokens
        sequence.readmitted_ps = NEVER
        sequence.recompute_tokens -= extend - self._fresh(sequence, cached_tokens, extend)

    def preempt(self, sequence: Sequence, decoding: bool) -> None:
        """Record a preemption; the rest of the prompt is not computed this time."""
        left = 0 if decoding else sequence.total - sequence.filled
        sequence.recompute_tokens -= left - self._fresh(sequence, sequence.filled, left)
        reached = sequence.request.input_tokens if decoding else sequence.filled
        self._reached[sequence] = max(reached, self._reached.get(sequence, 0))

    def finish(self, sequence: Sequence) -> None:
        self._reached.pop(sequence, None)

    def shares(self, chunks: list[Prefill], gpu_ps: list[int]) -> dict[str, PrefillShare]:
        """Return a step's shares by client; ``gpu_ps`` is the time of each chunk."""
        return shares_of(chunks, gpu_ps, self._fresh)

    def _fresh(self, sequence: Sequence, cached: int, tokens: int) -> int:
        """Return how many ``tokens`` after ``cached`` are computed for the first time."""
        if not sequence.retractions:
            return tokens
        end = min(cached + tokens, sequence.request.input_tokens)
        return max(end - max(cached, self._reached[sequence]), 0)


def admit_waiting(
    worker: EngineLoop[BlockNode],
    running: RunningList,
    booking: Booking,
    step: Step,
    preempt: Callable[[Preempt], bool] = never,
) -> None:
    """Run a pass: an admitted request gets a chunk of the step; ``preempt`` fulfils wishes.

    In vLLM the first request that does not fit ends the pass, as with ``fcfs``; another scheduler
    decides itself.
    """
    scheduler, waiting, now_ps = worker.scheduler, worker.waiting, worker._clock.now_ps

    def try_admit(request: Request) -> Tried:
        if step.budget <= 0:
            return OVER
        if running.is_full:
            return NO_ROOM if scheduler.preempts else OVER
        if not worker.cap.has_room(request) or not _try(worker, running, request, step):
            return NO_ROOM
        sequence = waiting.sequence_of(request)
        waiting.admit(request)
        worker.cap.enter(request)
        booking.admit(sequence, scheduler, now_ps)
        full = running.is_full and not scheduler.preempts
        return LAST if step.budget <= 0 or full else ADMITTED

    try:
        drive(scheduler.select(waiting, now_ps / PS_PER_S), try_admit, preempt)
    finally:
        waiting.end_pass()


def _try(worker: EngineLoop[BlockNode], running: RunningList, request: Request, step: Step) -> bool:
    sequence = worker.waiting.sequence_of(request)
    node, place = worker.waiting.match(request)
    loaded = worker.host.behind(sequence, node.depth)
    filled = node.depth + loaded
    left = sequence.total - filled
    tokens = min(left, step.budget)
    if not running.admit(sequence, node, place, filled + tokens):
        return False
    worker.host.load(sequence, node.depth)
    sequence.node, sequence.filled = None, filled
    last = tokens == left
    step.chunks.append(Prefill(sequence, filled, tokens, first=True, last=last, loaded=loaded))
    step.budget -= tokens
    return True


class Preemption:
    """Preemption on a worker, for lack of memory or by a scheduler."""

    def __init__(
        self, worker: EngineLoop[BlockNode], running: RunningList, booking: Booking
    ) -> None:
        self._worker = worker
        self._running = running
        self._booking = booking
        self._wished: list[Sequence] = []  # requests preempted in the present pass

    def for_memory(self) -> Sequence:
        """Preempt the last of the running list, or the request that the scheduler names."""
        worker, running = self._worker, self._running.sequences
        victim = running[-1]
        if worker.scheduler.orders_retraction:
            now_s = worker._clock.now_ps / PS_PER_S
            victim = retraction_order(worker.scheduler, worker.waiting, running, now_s)[0]
        self._take_back(victim)
        self._wait_again(victim)
        return victim

    def wished(self, step: Step, wish: Preempt) -> bool:
        """Preempt a request that ran before this pass; return False if it cannot be done."""
        running, host = self._running, self._worker.host
        sequence = next((s for s in running.sequences if s.request is wish.request), None)
        if sequence is None:
            return False
        chunk = next((chunk for chunk in step.chunks if chunk.sequence is sequence), None)
        if chunk is not None and chunk.first:
            return False  # this pass has admitted it
        held = running.computed_tokens(sequence)
        if wish.swap and not host.has_room(held):
            return False
        if chunk is not None:
            step.chunks.remove(chunk)
            step.budget += chunk.tokens
        elif sequence in running.batch.sequences:
            step.decodes -= 1
            step.budget += 1
        self._take_back(sequence)
        if wish.swap:
            host.store(sequence, held)
        self._wished.append(sequence)
        return True

    def requeue(self) -> bool:
        """Requeue the requests preempted in this pass. Return whether there were any."""
        wished, self._wished = self._wished, []
        for sequence in wished:
            self._wait_again(sequence)
        return bool(wished)

    def _take_back(self, sequence: Sequence) -> None:
        """Take memory from a sequence. Its full blocks stay cached."""
        worker = self._worker
        worker._end_stretch()
        self._booking.preempt(sequence, self._running.decodes(sequence))
        self._running.remove(sequence)
        worker.cap.leave(sequence.request)
        sequence.retract(worker._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        worker = self._worker
        now_s = worker._clock.now_ps / PS_PER_S
        worker.scheduler.on_retract(sequence.request, worker.waiting, now_s)
        worker.waiting.enter(sequence, first=True)
