"""The interface of a fairness policy before the cluster, which chooses the next client.

``SharePolicy`` is the base of policies that divide shares by client, or level by level in a tree.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Read, Selection, Setup, WaitingView
from fairbench.schedulers.params import NotNegative, NotNegativeInt, Positive
from fairbench.tenants import ROOT, Tenants, parent_of


class FlowPolicy(LocalScheduler):
    """The choice of the next client; an order then chooses among its requests. One policy per file.

    A flow is a client in a band of one priority, and each band has its own policy. Any other
    ``LocalScheduler`` can be used instead; a FlowPolicy also learns the time at which a request
    ends.
    """

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        """Return the client whose request goes next, by ``score``. Precondition: a request waits.

        The method is called again after each sent request, after ``on_admitted`` for that request.
        If the request cannot be sent after all, the method is called again later.
        """
        return min(
            view.clients(),
            key=lambda client: (self.score(view.oldest(client), now_s), *earliest(view, client)),
        )

    def score(self, request: Request, now_s: float) -> float:
        """Return the score of a client's next request; the lowest goes first, then by arrival."""
        return 0.0

    def select(self, view: WaitingView, now_s: float) -> Selection:
        while len(view):
            if not (yield view.oldest(self.next_flow(view, now_s))):
                return

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        """Handle the end of a sent request; ``read`` is the real cost of its prompt."""


def earliest(view: WaitingView, client: str) -> tuple[float, int]:
    """Return the tie-breaker: the order of arrival of the client's next request."""
    request = view.oldest(client)
    return request.arrival_s, request.request_id


@dataclass(frozen=True)
class PriceParams:
    """Prices: ``input_weight`` for a prompt token and ``output_weight`` for an output token.

    ``assumed_output_tokens`` are charged when a request is sent; with ``corrected``, the difference
    to the real length is charged or refunded when the request ends.
    """

    input_weight: Positive = 1.0
    output_weight: NotNegative = 2.0
    assumed_output_tokens: NotNegativeInt = 128
    corrected: bool = True

    def of(self, request: Request) -> float:
        """Return the charge when a request is sent, before its output length is known."""
        outputs = self.output_weight * self.assumed_output_tokens
        return self.input_weight * request.input_tokens + outputs

    def correction(self, request: Request, read: Read, output_tokens: int) -> float:
        """Return the additional charge at a request's end; negative if too much was charged."""
        if not self.corrected:
            return 0.0
        inputs = self.input_weight * (read.input_tokens - request.input_tokens)
        return inputs + self.output_weight * (output_tokens - self.assumed_output_tokens)


NextClient = Callable[[str], str]
"""A function that returns the client below a node whose request would go next."""


@dataclass(frozen=True)
class ShareParams(PriceParams):
    """The parameters of ``PriceParams``, tenants and weights.

    With ``tenants=tree``, siblings share level by level. ``weights`` override the experiment's
    weights for the clients that they name.
    """

    tenants: Tenants | None = None
    weights: dict[str, Positive] | None = None


class SharePolicy(FlowPolicy):
    """A policy that divides service among siblings. Without a tree, all clients are siblings.

    With a tree, siblings are the nodes directly below a tenant. Each level chooses a node, from the
    outermost tenants down to a client. A request is charged to its client and to all its tenants.
    """

    params: ShareParams

    @abstractmethod
    def enter(self, tenant: str, node: str) -> None:
        """Add a node below a tenant that had no request in the queue."""

    @abstractmethod
    def next_node(
        self, tenant: str, nodes: Collection[str], view: WaitingView, client: NextClient
    ) -> str:
        """Return the next of a tenant's waiting nodes, which are directly below the tenant.

        ``client`` returns the next client below a node.
        """

    @abstractmethod
    def charge(self, tenant: str, node: str, price: float, *, sent: bool) -> None:
        """Charge a node below a tenant; a negative price is a refund.

        ``sent`` is true if a request is sent now, and false if an earlier charge is corrected.
        """

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup.weighted(f"{self.name}.weights", self.params.weights))

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        for tenant, node in self._nodes(request.client):
            if node not in self.siblings(tenant, view.clients()):
                self.enter(tenant, node)

    def next_flow(self, view: WaitingView, now_s: float) -> str:
        return self._next(ROOT, view.clients(), view)

    def _next(self, tenant: str, clients: Collection[str], view: WaitingView) -> str:
        if self.params.tenants is None:
            return self.next_node(tenant, clients, view, str)

        @cache
        def client(node: str) -> str:
            below = [one for one in clients if node in self.setup.lineage(one)]
            leaf = self.setup.lineage(below[0])[-1] == node
            return below[0] if leaf else self._next(node, below, view)

        return client(self.next_node(tenant, self.siblings(tenant, clients), view, client))

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        for tenant, node in self._nodes(request.client):
            self.charge(tenant, node, self.params.of(request), sent=True)

    def on_answer(self, request: Request, read: Read, output_tokens: int, now_s: float) -> None:
        correction = self.params.correction(request, read, output_tokens)
        for tenant, node in self._nodes(request.client):
            self.charge(tenant, node, correction, sent=False)

    def siblings(self, tenant: str, clients: Collection[str]) -> Collection[str]:
        """Return the nodes directly below a tenant that lead to these clients."""
        return clients if self.params.tenants is None else self.setup.children_of(tenant, clients)

    def _nodes(self, client: str) -> Iterator[tuple[str, str]]:
        """Yield (tenant, node) from the outermost tenant to the client."""
        if self.params.tenants is None:
            yield ROOT, client
        else:
            yield from ((parent_of(node), node) for node in self.setup.lineage(client))
