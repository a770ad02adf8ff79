"""The queue before the cluster: any local scheduler orders it, any router empties it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Router, Selection, WaitingView
from fairbench.schedulers.drive import Tried, drive
from fairbench.schedulers.gateway.room import Room
from fairbench.schedulers.local.fcfs import FCFS
from fairbench.schedulers.queue_view import QueueView


class InOrder(FCFS):
    """Every request that is held is asked about, the oldest first, whatever became of others."""

    name = "in-order"

    def select(self, view: WaitingView, now_s: float) -> Selection:
        waiting = view.queue_order()
        while (request := next(waiting, None)) is not None:
            yield request


class GatewayQueue:
    """Holds requests until ``room`` and the router let them go, in the order of its scheduler.

    A home of a ``LocalScheduler`` like an engine's, but that nothing is known of caches: the whole
    input is charged when a request goes, its outputs when it is over. Pure: the home calls
    ``release`` whenever something has changed.
    """

    def __init__(self, scheduler: LocalScheduler, router: Router, room: Room) -> None:
        self.scheduler = scheduler
        self._router = router
        self._room = room
        self._view = QueueView()

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[Request]:
        """The requests that are held, in order of arrival."""
        return iter(self._view.queue_order())

    def enter(self, request: Request, now_s: float) -> bool:
        """A request arrives; False if the scheduler does not take it in."""
        if not self.scheduler.accepts(request, now_s):
            return False
        self.scheduler.on_arrival(request, self._view, now_s)
        self._view.enter(request)
        return True

    def release(self, now_s: float, send: Callable[[Request, int], None]) -> None:
        """``send`` to its worker whatever may go now, one by one, so that the loads are true."""

        def try_send(request: Request) -> Tried:
            worker = self._router.route(request, now_s)
            if worker is None:
                return Tried.NO_ROOM
            self._view.leave(request)
            self.scheduler.on_admitted(request, request.input_tokens, recompute=False)
            send(request, worker)
            return Tried.ADMITTED if self._room.has_room() else Tried.LAST

        if len(self._view) and self._room.has_room():
            drive(self.scheduler.select(self._view, now_s), try_send)

    def wake_s(self, now_s: float) -> float | None:
        """When the scheduler wants to be asked again although nothing has happened."""
        if self.scheduler.work_conserving or not len(self._view):
            return None
        return self.scheduler.wake_s(self._view, now_s)

    def finish(self, request: Request, output_tokens: int) -> None:
        """A request that was sent is over, and has produced so many tokens."""
        if output_tokens:
            self.scheduler.on_tokens(request.client, output_tokens)
            if self.scheduler.per_request_tokens:
                self.scheduler.on_request_tokens(request, output_tokens)
        self.scheduler.on_finish(request)

    def withdraw(self, request: Request) -> None:
        """A request that is held is wanted no more."""
        self._view.leave(request)
        self.scheduler.on_finish(request)
