"""The setup: the facts that every policy receives once, before the first request."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from fairbench.core import HEAVIEST, LIGHTEST, CostModel
from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.views import FleetView
from fairbench.tenants import children_of, lineage


def checked_weights(weights: Mapping[str, Any]) -> dict[str, float]:
    """Return the weights as floats by client. Raises UsageError for a weight out of range."""
    for client, weight in weights.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not (number and LIGHTEST <= weight <= HEAVIEST):
            allowed = f"a number from {LIGHTEST:g} to {HEAVIEST:g}"
            raise UsageError(f"weights.{client} = {weight!r}: must be {allowed}")
    return {client: float(weight) for client, weight in weights.items()}


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts about an experiment or a server; an unknown fact has a default value.

    ``clients`` is empty if clients are not known in advance, as at a server. ``weights`` are the
    clients' entitlements, 1 by default; weights belong to the experiment, not to a scheduler.
    ``pool_tokens`` is the size of a worker's KV pool in tokens (0: unknown), ``costs`` predicts the
    time of iterations, and ``swap_token_s`` is the time in seconds to copy a token's KV cache to
    the host's memory or back (None: the engine cannot copy). ``fleet`` reports the workers' loads,
    for routers and gateways only. ``tenant_paths`` maps clients to their positions in the tree of
    tenants, for clients whose names do not state the position (``fairbench.tenants``). ``shuffle``
    shuffles a list with a random stream of the host (None: the host has no random stream).
    ``order`` is the order of the router's queue, for local schedulers in the router's process.
    """

    clients: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    pool_tokens: int = 0
    costs: CostModel | None = None
    swap_token_s: float | None = None
    fleet: FleetView | None = None
    tenant_paths: Mapping[str, str] = field(default_factory=dict)
    shuffle: Callable[[list[Any]], None] | None = None
    order: object = None

    def lineage(self, client: str) -> tuple[str, ...]:
        """Return a client's tenants from the outermost to the innermost, then the client."""
        return lineage(self.tenant_paths.get(client, client))

    def children_of(self, tenant: str, clients: Iterable[str]) -> dict[str, None]:
        """Return a tenant's child nodes on the paths to the clients, in the clients' order."""
        paths = self.tenant_paths
        return children_of(tenant, (paths.get(client, client) for client in clients))

    def weight(self, client: str) -> float:
        """Return the client's entitlement relative to other clients."""
        return self.weights.get(client, 1)

    def weighted(self, owner: str, weights: Mapping[str, float] | None) -> Setup:
        """Return a setup in which ``weights`` override the weights of some clients.

        Later changes of this setup's weights remain visible in the new setup. Raises UsageError
        that names the setting ``owner`` for an unknown client.
        """
        if not weights:
            return self
        self.check_clients(owner, weights)
        return replace(self, weights=ChainMap(dict(weights), cast(Any, self.weights)))

    def check_clients(self, owner: str, names: Iterable[str]) -> None:
        """Raise UsageError about the setting ``owner`` if ``clients`` lacks a name."""
        for client in names:
            if self.clients and client not in self.clients:
                raise unknown_name(f"client in {owner}", client, self.clients)
