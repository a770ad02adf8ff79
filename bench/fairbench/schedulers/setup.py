"""The setup: the facts that every policy receives once, before the first request."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fairbench.core import HEAVIEST, LIGHTEST, CostModel
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.views import FleetView
from fairbench.tenants import children_of, lineage


def checked_weights(weights: Mapping[str, Any]) -> dict[str, float]:
    """Return weights by client. Raises UsageError for a weight out of range."""
    for client, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and LIGHTEST <= weight <= HEAVIEST):
            allowed = f"a number from {LIGHTEST:g} to {HEAVIEST:g}"
            raise UsageError(f"weights.{client} = {weight!r}: must be {allowed}")
    return {client: float(weight) for client, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts of an experiment or a server.

    A fact that the host does not know has a default value.

    ``clients`` is empty if clients are not known in advance, as at a server. ``weights`` are the
    clients' entitlements, 1 by default: they belong to the experiment, not to a scheduler.
    ``pool_tokens`` is the KV pool of one worker (0: unknown), ``costs`` the time of iterations, and
    ``swap_token_s`` the time to copy a token's KV to the host's memory or back (None: impossible).
    ``fleet`` is the workers' load, for routers and gateways only. ``tenant_paths`` are the
    positions of clients in the tree of tenants if their names do not state them
    (``fairbench.tenants``).
    """

    clients: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    pool_tokens: int = 0
    costs: CostModel | None = None
    swap_token_s: float | None = None
    fleet: FleetView | None = None
    tenant_paths: Mapping[str, str] = field(default_factory=dict)

    def lineage(self, client: str) -> tuple[str, ...]:
        """Return the nodes of a client: its tenants from the outermost, then the client."""
        return lineage(self.tenant_paths.get(client, client))

    def children_of(self, tenant: str, clients: Iterable[str]) -> dict[str, None]:
        """Return the child nodes of a tenant that lead to these clients, in the clients' order."""
        paths = self.tenant_paths
        return children_of(tenant, (paths.get(client, client) for client in clients))

    def weight(self, client: str) -> float:
        """Return the client's entitlement relative to other clients."""
        return self.weights.get(client, 1)

    def weighted(self, owner: str, weights: Mapping[str, float] | None) -> Setup:
        """Return the setup with other weights for some clients.

        Later changes of the other weights remain visible. Raises UsageError naming ``owner`` for an
        unknown client.
        """
        if not weights:
            return self
        self.check_clients(owner, weights)
        return replace(self, weights=ChainMap(dict(weights), cast(Any, self.weights)))

    def check_clients(self, owner: str, names: Iterable[str]) -> None:
        """Raise UsageError naming the setting ``owner`` for an unknown client, if all are known."""
        for client in names:
            if self.clients and client not in self.clients:
                raise unknown_name(f"client in {owner}", client, self.clients)
