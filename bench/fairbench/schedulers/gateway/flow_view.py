"""The queue before the cluster as a scheduler sees it: a flow for each client, in its own order."""

from __future__ import annotations

from fairbench.core import Request
from fairbench.schedulers.gateway.ordering.order import Order
from fairbench.schedulers.list_view import ListScan
from fairbench.schedulers.queue_view import QueueView


class FlowView(QueueView):
    """A ``QueueView`` in which the requests of each client (its flow) are sorted by ``order``.

    What is cached is what the best worker has; a scheduler that asks for match order gets that over
    all flows, without the engine's deprioritisation of equal prompts.
    """

    def __init__(self, order: Order) -> None:
        super().__init__()
        self._order = order

    def oldest(self, client: str) -> Request:
        return self._order.first(self._of_client[client])

    def queue_order(self) -> ListScan:
        return ListScan(list(self._order.in_order(self._requests)), self._requests)

    def match_order(self, *, refresh: bool = True) -> ListScan:
        if not refresh:
            return self.queue_order()
        by_match = sorted(self._requests, key=lambda request: -self.matched_tokens(request))
        return ListScan(by_match, self._requests)

    def matched_tokens(self, request: Request) -> int:
        return min(self._order.matched(request), request.input_tokens - 1)
