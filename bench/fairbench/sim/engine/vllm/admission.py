"""The second part of a vLLM step: waiting requests, in the scheduler's order."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import PS_PER_S, Request
from fairbench.hardware.vllm_params import VLLMLimits
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.drive import (
    ADMITTED,
    LAST,
    NO_ROOM,
    OVER,
    Preempt,
    Tried,
    drive,
    never,
)
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.engine.host_memory import HostMemory
from fairbench.sim.engine.prefill import Prefill
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.booking import Booking
from fairbench.sim.engine.vllm.running import RunningList, Step
from fairbench.sim.engine.waiting import WaitingQueue


class Admission:
    """The admission into a step.

    In vLLM the first request that does not fit ends the pass, which is what
    ``fcfs`` does; another scheduler decides that itself.
    """

    def __init__(
        self,
        limits: VLLMLimits,
        running: RunningList,
        waiting: WaitingQueue[BlockNode],
        booking: Booking,
        host: HostMemory,
        cap: LoadCap,
    ) -> None:
        self._limits = limits
        self._running = running
        self._waiting = waiting
        self._booking = booking
        self._host = host
        self._cap = cap

    def run(
        self,
        step: Step,
        scheduler: LocalScheduler,
        now_ps: int,
        preempt: Callable[[Preempt], bool] = never,
    ) -> None:
        """Run a pass: an admitted request gets a chunk of the step; ``preempt`` fulfils wishes."""

        def try_admit(request: Request) -> Tried:
            if step.budget <= 0:
                return OVER
            if self._is_full:
                return NO_ROOM if scheduler.preempts else OVER
            if not self._cap.has_room(request) or not self._try(request, step):
                return NO_ROOM
            sequence = self._waiting.sequence_of(request)
            self._waiting.admit(request)
            self._cap.enter(request)
            self._booking.admit(sequence, scheduler, now_ps)
            over = step.budget <= 0 or (self._is_full and not scheduler.preempts)
            return LAST if over else ADMITTED

        try:
            drive(scheduler.select(self._waiting, now_ps / PS_PER_S), try_admit, preempt)
        finally:
            self._waiting.end_pass()

    @property
    def _is_full(self) -> bool:
        return len(self._running) >= self._limits.max_num_seqs

    def _try(self, request: Request, step: Step) -> bool:
        sequence = self._waiting.sequence_of(request)
        node, place = self._waiting.match(request)
        loaded = self._host.behind(sequence, node.depth)
        filled = node.depth + loaded
        left = sequence.total - filled
        tokens = min(left, step.budget)
        if not self._running.admit(sequence, node, place, filled + tokens):
            return False
        self._host.load(sequence, node.depth)
        sequence.node, sequence.filled = None, filled
        last = tokens == left
        step.chunks.append(Prefill(sequence, filled, tokens, first=True, last=last, loaded=loaded))
        step.budget -= tokens
        return True
