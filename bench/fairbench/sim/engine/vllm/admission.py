"""The second part of a vLLM step: waiting requests, in the scheduler's order."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import PS_PER_S, Request
from fairbench.schedulers.drive import ADMITTED, LAST, NO_ROOM, OVER, Preempt, Tried, drive, never
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.prefill import Prefill
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.booking import Booking
from fairbench.sim.engine.vllm.running import RunningList, Step


def admit_waiting(
    worker: EngineLoop[BlockNode],
    running: RunningList,
    booking: Booking,
    step: Step,
    preempt: Callable[[Preempt], bool] = never,
) -> None:
    """Run a pass: an admitted request gets a chunk of the step; ``preempt`` fulfils wishes.

    In vLLM the first request that does not fit ends the pass, which is what ``fcfs`` does; another
    scheduler decides that itself.
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
