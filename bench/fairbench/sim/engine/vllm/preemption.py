"""Memory taken from running requests, which wait again at the head of the queue."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.core import PS_PER_S
from fairbench.errors import RunFailed
from fairbench.schedulers.base import LocalScheduler, Preempt
from fairbench.schedulers.load_cap import LoadCap
from fairbench.sim.clock import Clock
from fairbench.sim.engine.host_memory import HostMemory
from fairbench.sim.engine.vllm.block_tree import BlockNode
from fairbench.sim.engine.vllm.booking import Booking
from fairbench.sim.engine.vllm.running import RunningList, Step
from fairbench.sim.engine.waiting import WaitingQueue
from fairbench.sim.sequence import Sequence


class Preemption:
    """Preemption for lack of memory or by a scheduler; calls ``before`` first."""

    def __init__(
        self,
        clock: Clock,
        scheduler: LocalScheduler,
        running: RunningList,
        waiting: WaitingQueue[BlockNode],
        booking: Booking,
        host: HostMemory,
        cap: LoadCap,
        before: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._running = running
        self._waiting = waiting
        self._booking = booking
        self._host = host
        self._cap = cap
        self._before = before
        self._wished: list[Sequence] = []  # in the pass under way

    def for_memory(self) -> Sequence:
        """Preempt the last of the running list, or the request that the scheduler names."""
        victim = self._running.sequences[-1]
        if self._scheduler.orders_retraction:
            victim = self._first_to_go()
        self._take_back(victim)
        self._wait_again(victim)
        return victim

    def _first_to_go(self) -> Sequence:
        of_request = {sequence.request: sequence for sequence in self._running.sequences}
        order = self._scheduler.retraction_order(
            self._waiting.running, self._clock.now_ps / PS_PER_S
        )
        if len(order) != len(of_request) or set(order) != set(of_request):
            raise RunFailed(
                f"{self._scheduler.name}: retraction_order must return every running "
                "request exactly once"
            )
        return of_request[order[0]]

    def wished(self, step: Step, wish: Preempt) -> bool:
        """Preempt a request that ran before this pass; return False if it cannot be done."""
        sequence = next((s for s in self._running.sequences if s.request is wish.request), None)
        if sequence is None:
            return False
        chunk = next((chunk for chunk in step.chunks if chunk.sequence is sequence), None)
        if chunk is not None and chunk.first:
            return False  # this pass has admitted it
        held = self._running.computed_tokens(sequence)
        if wish.swap and not self._host.has_room(held):
            return False
        if chunk is not None:
            step.chunks.remove(chunk)
            step.budget += chunk.tokens
        elif sequence in self._running.batch.sequences:
            step.decodes -= 1
            step.budget += 1
        self._take_back(sequence)
        if wish.swap:
            self._host.store(sequence, held)
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
        self._before()
        self._booking.preempt(sequence, sequence in self._running.batch.sequences)
        self._running.remove(sequence)
        self._cap.leave(sequence.request)
        sequence.retract(self._clock.now_ps)

    def _wait_again(self, sequence: Sequence) -> None:
        now_s = self._clock.now_ps / PS_PER_S
        self._scheduler.on_retract(sequence.request, self._waiting, now_s)
        self._waiting.enter(sequence, first=True)
