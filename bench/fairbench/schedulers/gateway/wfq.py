"""The gateway policy weighted fair queueing (WFQ)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.gateway.policy import NextClient, ShareParams, SharePolicy, earliest


class WFQ(SharePolicy):
    """Weighted fair queueing: the request with the earliest finish in virtual time is sent first.

    In virtual time, a client's requests run one after the other, and each request takes its price
    divided by the client's weight. The current virtual time is the virtual finish time of the
    request that was sent last. A returning client starts at the current virtual time, so a client
    cannot save up service while it is absent. No client starves. If ``corrected`` is false, the
    charges of two waiting clients differ by at most the sum of both clients' highest request
    prices. In this bound, charges and prices are divided by client weights. A similar policy was
    proposed for vLLM's engine (PR 31909, closed).
    """

    name = "wfq"

    @dataclass(frozen=True)
    class Params(ShareParams):
        """The parameters of weighted fair queueing (see ``ShareParams``)."""

        constants: ClassVar[tuple[str, ...]] = ("input_weight", "output_weight")

    def __init__(self, params: Params) -> None:
        self.params = params
        # ``ends`` maps each node to the virtual finish time of its last request.
        self.ends: dict[str, float] = {}
        self._virtual: dict[str, float] = {}

    def add_node(self, tenant: str, node: str) -> None:
        self.ends[node] = max(self._virtual.get(tenant, 0.0), self.ends.get(node, 0.0))

    def next_node(
        self, tenant: str, nodes: Collection[str], view: WaitingView, client: NextClient
    ) -> str:
        def end(node: str) -> tuple[float, float, int]:
            length = self._length(node, self.params.price_of(view.oldest(client(node))))
            return self.ends[node] + length, *earliest(view, client(node))

        return min(nodes, key=end)

    def charge_node(self, tenant: str, node: str, price: float, *, sent: bool) -> None:
        self.ends[node] += self._length(node, price)
        if sent:
            self._virtual[tenant] = max(self._virtual.get(tenant, 0.0), self.ends[node])

    def _length(self, node: str, price: float) -> float:
        return price / self.setup.weight(node)

    def forget(self, client: str) -> None:
        if self.params.tenants is None:
            self.ends.pop(client, None)

    def balances(self) -> Mapping[str, float]:
        return self.ends
