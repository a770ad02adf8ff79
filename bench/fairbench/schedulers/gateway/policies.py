"""Policies that choose the next request of a queue before the cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Annotated, ClassVar

from annotated_types import Ge
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, Setup, WaitingView
from fairbench.schedulers.gateway.policy import (
    FlowPolicy,
    NextClient,
    ShareParams,
    SharePolicy,
    earliest,
)
from fairbench.schedulers.params import NoParams, Positive
from fairbench.tenants import Tenants


class DRR(SharePolicy):
    """Deficit round robin: a turn grants a client a quantum, which pays for its next requests.

    A client without requests loses its remaining credit, and keeps a debt. No client starves.
    Without corrections of prices, the charges over weight of two waiting clients differ by less
    than a quantum plus the highest price of a request of each client. Charges are prices
    (``PriceParams``), which may differ from the cluster's work. In a tree of tenants, the child
    nodes of each tenant take turns by the same rule. InferGrid's "deficit round robin" is a
    different rule, ``infergrid-drr``.
    """

    name = "drr"

    @dataclass(frozen=True)
    class Params(ShareParams):
        """The parameters of ``ShareParams``, and the ``quantum``.

        ``quantum`` is the number of tokens that a turn grants a client of weight 1.
        """

        constants: ClassVar[tuple[str, ...]] = ("input_weight", "output_weight")

        quantum: Positive = 2_000.0

    params: Params

    def __init__(self, params: Params) -> None:
        self.params = params
        self.deficits: dict[str, float] = {}
        self._rotation: defaultdict[str, list[str]] = defaultdict(list)
        """``_rotation`` has the waiting child nodes by tenant, the next node first."""
        # ``_turn`` maps tenants to the child nodes whose turn it is.
        self._turn: dict[str, str] = {}
        self._waiting: Collection[str] = ()

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._waiting = view.clients()
        super().on_arrival(request, view, now_s)

    def add_node(self, tenant: str, node: str) -> None:
        # The node may still have a turn if the node's last request was withdrawn.
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
        """Grant quanta in rotation until a node can pay for its next request; return the node."""
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


class WFQ(SharePolicy):
    """Weighted fair queueing: the request with the earliest end in virtual time goes first.

    Virtual time is the time in which the requests of a client follow one another, each for its
    price over the client's weight. The current virtual time is the end of the last sent request. A
    returning client starts at the current virtual time, so that no client saves up service while
    absent. No client starves: without corrections of prices, the charges over weight of two waiting
    clients f and g differ by at most P_f / w_f + P_g / w_g, where w is a client's weight and P the
    highest price of its requests. A similar policy was proposed for vLLM's engine (PR 31909,
    closed).
    """

    name = "wfq"

    @dataclass(frozen=True)
    class Params(ShareParams):
        """The parameters of weighted fair queueing, which are the parameters of ``ShareParams``."""

        constants: ClassVar[tuple[str, ...]] = ("input_weight", "output_weight")

    def __init__(self, params: Params) -> None:
        self.params = params
        # ``ends`` maps nodes to the ends of the nodes' last requests in virtual time.
        self.ends: dict[str, float] = {}
        # ``_virtual`` maps tenants to the current virtual times of the tenants' child nodes.
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


class RoundRobinFlows(FlowPolicy):
    """Round robin over the waiting clients, in order of their names.

    The rule is llm-d's round-robin-fairness-policy (llm-d-router @7c6ba75). Between two requests of
    a waiting client, each other client sends at most one request. The policy does not count tokens,
    so a client with larger requests gets more service.
    """

    name = "round-robin"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self._last = ""  # the client of the last sent request

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        waiting = view.clients()
        return min((one for one in waiting if one > self._last), default=min(waiting))

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._last = request.client


class TokenBucket(LocalScheduler):
    """Token buckets, which limit each client to ``rate_per_min`` requests per minute.

    A bucket holds up to ``burst`` tokens, each of which allows one request. A request takes one
    token from its client's bucket, or is refused if the bucket is empty. Accepted requests go in
    order of arrival. InferGrid's gateway has this rule (coconut-labs/infergrid @a8d3ea8).
    """

    name = "token-bucket"

    @dataclass(frozen=True)
    class Params:
        """Parameters of the buckets: ``rate_per_min`` and ``burst`` are numbers of requests.

        With ``tenants=tree``, each outermost tenant has a bucket for all its clients. With
        ``weights``, the rate and the burst (at least 1) are multiplied by the weight of the client
        or tenant. ``weights`` override the experiment's weights; without ``weights`` every weight
        is 1.
        """

        rate_per_min: Positive = 600.0
        burst: Annotated[FiniteFloat, Ge(1)] = 10.0
        tenants: Tenants | None = None
        weights: dict[str, Positive] | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        # ``_filled`` maps clients or tenants to tokens, and the time in seconds at which the tokens
        # were counted.
        self._filled: dict[str, tuple[float, float]] = {}

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))

    def accepts(self, request: Request, now_s: float) -> bool:
        whose = request.client
        if self.params.tenants is not None:
            whose = self.setup.lineage(whose)[0]
        weight = self.setup.weight(whose) if self.params.weights else 1
        burst = max(1.0, self.params.burst * weight)
        tokens, counted_s = self._filled.get(whose, (burst, now_s))
        gained = (now_s - counted_s) * self.params.rate_per_min * weight / 60
        tokens = min(burst, tokens + gained)
        accepted = tokens >= 1
        self._filled[whose] = (tokens - accepted, now_s)
        return accepted

    def select(self, view: WaitingView, now_s: float) -> Selection:
        waiting = view.queue_order()
        while (request := next(waiting, None)) is not None:
            yield request
