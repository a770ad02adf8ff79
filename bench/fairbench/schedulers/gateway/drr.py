"""The gateway policy deficit round robin (DRR)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.base import WaitingView
from fairbench.schedulers.gateway.policy import NextClient, ShareParams, SharePolicy
from fairbench.schedulers.params import Positive


class DRR(SharePolicy):
    """Deficit round robin: clients take turns, and each turn adds a quantum of credit.

    A client without queued requests loses its remaining credit, but keeps a debt. No client
    starves. If ``corrected`` is false, two waiting clients' charges, divided by their weights,
    differ by less than a quantum plus both clients' highest request prices. The price of a request
    (``PriceParams``) may differ from the work that the request causes. In a tree of tenants, the
    children of each tenant take turns. InferGrid's "deficit round robin" is another rule,
    implemented as ``infergrid-drr``.
    """

    name = "drr"

    @dataclass(frozen=True)
    class Params(ShareParams):
        """The parameters of ``ShareParams``, and ``quantum``: the tokens per turn at weight 1."""

        constants: ClassVar[tuple[str, ...]] = ("input_weight", "output_weight")

        quantum: Positive = 2_000.0

    params: Params

    def __init__(self, params: Params) -> None:
        self.params = params
        self.deficits: dict[str, float] = {}
        self._rotation: defaultdict[str, list[str]] = defaultdict(list)
        """Each tenant's waiting child nodes, in the order of their turns."""
        self._turn: dict[str, str] = {}
        self._waiting: Collection[str] = ()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._waiting = view.clients()
        super().on_arrival(request, view, now_s)

    def add_node(self, tenant: str, node: str) -> None:
        # End the turn that the node may still have because its last request was withdrawn.
        self._end_turns(tenant, node)
        self._rotation[tenant].append(node)

    def next_node(
        self, tenant: str, nodes: Collection[str], view: WaitingView, client: NextClient
    ) -> str:
        def price(node: str) -> float:
            return self.params.price_of(view.oldest(client(node)))

        rotation = self._rotation[tenant]
        for node in [one for one in rotation if one not in nodes]:
            self._end_turns(tenant, node)
        if (turn := self._turn.get(tenant)) is not None:
            if self.deficits[turn] >= price(turn):
                return turn
            rotation.append(rotation.pop(0))
        self._turn[tenant] = self._next_turn(rotation, price)
        return self._turn[tenant]

    def _next_turn(self, rotation: list[str], price: Callable[[str], float]) -> str:
        """Give clients (or tenants) quanta in turn until one can pay for a request; return it."""
        lacks = {node: price(node) - self.deficits[node] for node in rotation}
        rounds = {node: max(1, ceil(lack / self._quantum(node))) for node, lack in lacks.items()}
        least = min(rounds.values())
        first = next(index for index, one in enumerate(rotation) if rounds[one] == least)
        for index, node in enumerate(rotation):
            self.deficits[node] += (least - (index > first)) * self._quantum(node)
        rotation[:] = rotation[first:] + rotation[:first]
        return rotation[0]

    def _end_turns(self, tenant: str, node: str) -> None:
        self.deficits[node] = min(0.0, self.deficits.get(node, 0.0))
        if node in self._rotation[tenant]:
            self._rotation[tenant].remove(node)
        if node == self._turn.get(tenant):
            del self._turn[tenant]

    def _quantum(self, node: str) -> float:
        return self.params.quantum * self.setup.weight(node)

    def charge_node(self, tenant: str, node: str, price: float, *, sent: bool) -> None:
        self.deficits[node] -= price
        if sent and node not in self.siblings(tenant, self._waiting):
            self._end_turns(tenant, node)

    def forget(self, client: str) -> None:
        if client not in self._rotation:
            self.deficits.pop(client, None)

    def balances(self) -> Mapping[str, float]:
        return self.deficits
