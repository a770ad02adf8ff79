"""The interface of gateway policies that choose the client whose request is sent next.

``SharePolicy`` is the base class of policies that divide service among clients or tenants.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from fairbench.core import OUTPUT_PRICE, Request
from fairbench.schedulers.base import LocalScheduler, Read, Selection, Setup, WaitingView
from fairbench.schedulers.params import NotNegative, NotNegativeInt, Positive
from fairbench.tenants import ROOT, Tenants, parent_of


class FlowPolicy(LocalScheduler):
    """A policy that chooses the client whose request the gateway sends next.

    A band is all requests of one priority, and a flow is one client's requests in a band. After the
    policy has chosen a flow, an ``Order`` chooses a request of this flow. Each band has its own
    policy object. Any ``LocalScheduler`` can order the requests of a band; a ``FlowPolicy`` is also
    told when requests end. If ``orders_bands`` is True, a single policy orders the requests of all
    priorities. The mapping ``priorities`` sets the priority of all requests of a client. A policy
    with ``needs_sessions`` uses the sessions of requests. ``detector`` names the policy's default
    saturation detector.

    The methods ``place`` and ``given_up`` are optional. ``place(request, now_s)`` returns the
    worker for a request, or None to use the router's choice. ``given_up(now_s)`` returns the queued
    requests that the policy now refuses.
    """

    orders_bands: ClassVar[bool] = False
    needs_sessions: ClassVar[bool] = False
    detector: ClassVar[str] = ""
    priorities: Mapping[str, int] = {}

    place: Callable[[Request, float], int | None] | None = None
    given_up: Callable[[float], Collection[Request]] | None = None

    def priority_of(self, request: Request) -> int:
        """Return the priority set for the request's client, or the request's own priority."""
        return self.priorities.get(request.client, request.priority)

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        """Return the client with the best ``score``, whose request goes next.

        Precondition: at least one request waits. The queue calls ``next_flow`` for each request to
        send. If no worker can take the chosen request now, the queue calls ``next_flow`` again
        later.
        """
        return min(
            view.clients(),
            key=lambda client: (self.score(view.oldest(client), now_s), *earliest(view, client)),
        )

    def score(self, request: Request, now_s: float) -> float:
        """Return the score of a client's next request; the lowest score goes first."""
        return 0.0

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while len(view):
            if not (yield view.oldest(self.next_flow(view, now_s))):
                return

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        """Handle the end of a sent request; ``read`` has the real length of the prompt."""


def earliest(view: WaitingView, client: str) -> tuple[float, int]:
    """Return the arrival time and id of the client's next request, which break ties of scores."""
    request = view.oldest(client)
    return request.arrival_s, request.request_id


@dataclass(frozen=True)
class PriceParams:
    """The prices of a prompt token (``input_weight``) and of an output token (``output_weight``).

    When a request is sent, the client is charged for ``assumed_output_tokens`` output tokens. If
    ``corrected`` is set, the charge is corrected at the request's end, when the token counts are
    known.
    """

    input_weight: Positive = 1.0
    output_weight: NotNegative = float(OUTPUT_PRICE)
    assumed_output_tokens: NotNegativeInt = 128
    corrected: bool = True

    def price_of(self, request: Request) -> float:
        """Return the charge for sending a request, whose output length is not known yet."""
        outputs = self.output_weight * self.assumed_output_tokens
        return self.input_weight * request.input_tokens + outputs

    def correction(self, request: Request, read: Read, output_tokens: int) -> float:
        """Return the additional charge at the end of a request; a negative charge is a refund."""
        if not self.corrected:
            return 0.0
        inputs = self.input_weight * (read.input_tokens - request.input_tokens)
        return inputs + self.output_weight * (output_tokens - self.assumed_output_tokens)


NextClient = Callable[[str], str]
"""A function that returns the client to serve next at or below a node of the tree of tenants."""


@dataclass(frozen=True)
class ShareParams(PriceParams):
    """The parameters of a ``SharePolicy``: prices (``PriceParams``), tenants and weights.

    With ``tenants=tree``, service is divided among siblings at each level of the tree of tenants.
    The clients' ``weights`` override the weights in the experiment.
    """

    tenants: Tenants | None = None
    weights: dict[str, Positive] | None = None


class SharePolicy(FlowPolicy):
    """A gateway policy that divides service among sibling nodes of the tenant tree.

    Without a tree of tenants, all clients are siblings. In a tree, the nodes directly below one
    tenant are siblings. The policy chooses a node at each level of the tree, down to a client. A
    request is charged to its client and to all tenants of the client.
    """

    params: ShareParams

    @abstractmethod
    def add_node(self, tenant: str, node: str) -> None:
        """Add a node to a tenant's waiting nodes when the node gets its first queued request."""

    @abstractmethod
    def next_node(
        self, tenant: str, nodes: Collection[str], view: WaitingView, client: NextClient
    ) -> str:
        """Choose the tenant's next child node among the waiting ``nodes``."""

    @abstractmethod
    def charge_node(self, tenant: str, node: str, price: float, *, sent: bool) -> None:
        """Charge ``price`` to ``node``, a child of ``tenant``; a negative price is a refund.

        ``sent`` is true if a request is sent now, and false if an earlier charge is corrected.
        """

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        for tenant, node in self._nodes(request.client):
            if node not in self.siblings(tenant, view.clients()):
                self.add_node(tenant, node)

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        return self._next_client(ROOT, view.clients(), view)

    def _next_client(self, tenant: str, clients: Collection[str], view: WaitingView) -> str:
        if self.params.tenants is None:
            return self.next_node(tenant, clients, view, str)

        @cache
        def client(node: str) -> str:
            below = [one for one in clients if node in self.setup.lineage(one)]
            leaf = self.setup.lineage(below[0])[-1] == node
            return below[0] if leaf else self._next_client(node, below, view)

        return client(self.next_node(tenant, self.siblings(tenant, clients), view, client))

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        for tenant, node in self._nodes(request.client):
            self.charge_node(tenant, node, self.params.price_of(request), sent=True)

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        correction = self.params.correction(request, read, output_tokens)
        for tenant, node in self._nodes(request.client):
            self.charge_node(tenant, node, correction, sent=False)

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        """Return a tenant's child nodes that are, or contain, one of the given clients."""
        return clients if self.params.tenants is None else self.setup.children_of(tenant, clients)

    def _nodes(self, client: str) -> Iterator[tuple[str, str]]:
        if self.params.tenants is None:
            yield ROOT, client
        else:
            yield from ((parent_of(node), node) for node in self.setup.lineage(client))
