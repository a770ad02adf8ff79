"""Weighted fair queuing before the cluster, self-clocked (Golestani 1994)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import Read, Setup, WaitingView
from fairbench.schedulers.gateway.policy import FlowPolicy, earliest
from fairbench.schedulers.gateway.price import PriceParams
from fairbench.tenants import ROOT, Tenants, parent_of


class WFQ(FlowPolicy):
    """The request that would finish first if clients shared the cluster by weight.

    A client's requests follow one another in virtual time, each as long as its price over the
    client's weight; virtual time is the end of the request that went last, and a client that comes
    back starts there, so that being away saves nothing up. Nobody starves: while two clients wait,
    what they have paid differs, over their weights, by at most the price of the dearest request of
    each over its weight, if prices are not corrected. vLLM was offered the like inside the engine
    (PR 31909, closed).
    """

    name = "wfq"

    @dataclass(frozen=True)
    class Params(PriceParams):
        """The parameters of weighted fair queueing, in addition to ``PriceParams``.

        ``tenants``: with ``tree``, siblings share level by level. ``weights`` override the
        experiment's weights for the clients that they name.
        """

        tenants: Tenants | None = None
        weights: dict[str, Annotated[FiniteFloat, Gt(0)]] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self.ends: dict[str, float] = {}  # when each client's last request ends, in virtual time
        self._virtual: dict[str, float] = {}  # by tenant, of those in it

    def _nodes(self, client: str) -> Iterator[tuple[str, str]]:
        """Yield the tenants of a client from the top, then the client.

        Only the client without a tree.
        """
        if self.params.tenants is None:
            yield ROOT, client
        else:
            yield from ((parent_of(node), node) for node in self.setup.lineage(client))

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        for tenant, node in self._nodes(request.client):
            if node not in self._waiting(tenant, view.clients()):
                self.ends[node] = max(self._virtual.get(tenant, 0.0), self.ends.get(node, 0.0))

    def _waiting(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        return clients if self.params.tenants is None else self.setup.children_of(tenant, clients)

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        return self._next(ROOT, view.clients(), view)

    def _next(self, tenant: str, clients: Collection[str], view: WaitingView) -> str:
        """Return a tenant's next client; the length of each node is that of its next request."""
        first = {node: self._within(node, clients, view) for node in self._waiting(tenant, clients)}

        def end(node: str) -> tuple[float, float, int]:
            client = first[node]
            length = self._length(node, self.params.of(view.oldest(client)))
            return self.ends[node] + length, *earliest(view, client)

        return first[min(first, key=end)]

    def _within(self, node: str, clients: Collection[str], view: WaitingView) -> str:
        """Return the next client below a node; for the node of a client, the client itself."""
        if self.params.tenants is None:
            return node
        below = [client for client in clients if node in self.setup.lineage(client)]
        return (
            below[0] if self.setup.lineage(below[0])[-1] == node else self._next(node, below, view)
        )

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        for tenant, node in self._nodes(request.client):
            self.ends[node] += self._length(node, self.params.of(request))
            self._virtual[tenant] = max(self._virtual.get(tenant, 0.0), self.ends[node])

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        correction = self.params.correction(request, read, output_tokens)
        for _, node in self._nodes(request.client):
            self.ends[node] += self._length(node, correction)

    def _length(self, node: str, price: float) -> float:
        return price / self.setup.weight(node)

    def forget(self, client: str) -> None:
        if self.params.tenants is None:
            self.ends.pop(client, None)

    def balances(self) -> Mapping[str, float]:
        return self.ends
