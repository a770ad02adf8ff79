"""A worker's backlog in a tree of tenants, shared among siblings at every level."""

from __future__ import annotations

from collections.abc import Callable

from fairbench.schedulers.routing.backlog import Backlog
from fairbench.tenants import lineage, parent_of


class TenantBacklog:
    """A ``Backlog`` in which each node shares its tenant's part with its siblings."""

    def __init__(
        self,
        weight: Callable[[str], float],
        lineage: Callable[[str], tuple[str, ...]] = lineage,
    ) -> None:
        self._weight, self._lineage = weight, lineage
        self._below: dict[str, Backlog] = {}  # by tenant, of those in it
        self._nodes: dict[int, tuple[str, ...]] = {}  # by request

    def _among(self, node: str) -> Backlog:
        """Return the backlog of a node and its siblings."""
        tenant = parent_of(node)
        if tenant not in self._below:
            self._below[tenant] = Backlog(self._weight)
        return self._below[tenant]

    def add(self, request_id: int, client: str, work: int) -> None:
        """Add the work of a request that has arrived.

        Args:
            request_id: Number of the request.
            client: Name of the request's client.
            work: Work of the request, in tokens of prefill.
        """
        self._nodes[request_id] = self._lineage(client)
        for node in self._lineage(client):
            self._among(node).add(request_id, node, work)

    def remove(self, request_id: int) -> None:
        """Remove exactly the work that a finished request added."""
        for node in self._nodes.pop(request_id):
            self._among(node).remove(request_id)

    def reweigh(self) -> None:
        """Discard the cached sums, because weights of clients or tenants have changed."""
        for backlog in self._below.values():
            backlog.reweigh()

    def finish(self, client: str, work: int) -> float:
        """Return when ``work`` more of a client would end under fair sharing from now on.

        The work of a tenant's clients done by then is the work that the tenant needs until then.
        """
        *tenants, leaf = self._lineage(client)
        done = self._among(leaf).finish(leaf, work)
        for tenant in reversed(tenants):
            done = self._among(tenant).until(tenant, done)
        return done
