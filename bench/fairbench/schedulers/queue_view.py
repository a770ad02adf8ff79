"""A waiting queue that knows clients but no cache, for a host without an engine."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fairbench.core import Request
from fairbench.schedulers.list_view import ListScan
from fairbench.schedulers.views import NothingRunning, RunningView


class QueueView:
    """A WaitingView in order of arrival, with nothing cached and no running batch."""

    def __init__(self, running: RunningView | None = None) -> None:
        self.running: RunningView = NothingRunning() if running is None else running
        self._requests: dict[Request, None] = {}  # in queue order
        self._of_client: dict[str, dict[Request, None]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: object) -> bool:
        return request in self._requests

    def clients(self) -> Collection[str]:
        return self._of_client.keys()

    def oldest(self, client: str) -> Request:
        return next(iter(self._of_client[client]))

    def queue_order(self) -> ListScan:
        return ListScan(list(self._requests), self._requests)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        return self.queue_order()

    def matched_tokens(self, request: Request) -> int:
        return 0

    # The home's side.

    def arrivals(self) -> Iterator[Request]:
        """Return the requests in queue order, regardless of the order that a scheduler sees."""
        return iter(list(self._requests))

    def enter(self, request: Request) -> None:
        """Append an arrival or a retracted request."""
        self._requests[request] = None
        self._of_client.setdefault(request.client, {})[request] = None

    def leave(self, request: Request) -> None:
        """Remove a request that was admitted or aborted."""
        del self._requests[request]
        mine = self._of_client[request.client]
        del mine[request]
        if not mine:
            del self._of_client[request.client]
