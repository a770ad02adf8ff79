"""Memory taken from running requests, which wait again at the head of the queue."""

from __future__ import annotations

from fairbench.core import PS_PER_S
from fairbench.schedulers.base import Preempt
from fairbench.sim.engine.loop import EngineLoop
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.booking import Booking
from fairbench.sim.engine.vllm.running import RunningList, Step
from fairbench.sim.engine.waiting import retraction_order
from fairbench.sim.sequence import Sequence


class Preemption:
    """Preemption on a worker, for lack of memory or by a scheduler."""

    def __init__(
        self, worker: EngineLoop[BlockNode], running: RunningList, booking: Booking
    ) -> None:
        self._worker = worker
        self._running = running
        self._booking = booking
        self._wished: list[Sequence] = []  # in the pass under way

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
        self._booking.preempt(sequence, sequence in worker.batch.sequences)
        self._running.remove(sequence)
        worker.cap.leave(sequence.request)
        sequence.retract(worker._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        worker = self._worker
        now_s = worker._clock.now_ps / PS_PER_S
        worker.scheduler.on_retract(sequence.request, worker.waiting, now_s)
        worker.waiting.enter(sequence, first=True)
