"""The setup: what every policy is told once, before the first request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairbench.core import CostModel
from fairbench.schedulers.views import FleetView


@dataclass(frozen=True, slots=True)
class Setup:
    """The facts of an experiment or a server. What a home does not know has its default.

    ``clients`` is empty where clients just turn up, as at a server. ``weights`` are the clients'
    entitlements, 1 where none is given: they belong to the experiment, not to a scheduler.
    ``pool_tokens`` is the KV pool of one worker (0: unknown), ``costs`` what iterations take,
    ``fleet`` the workers' load, for routers and gateways only.
    """

    clients: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    pool_tokens: int = 0
    costs: CostModel | None = None
    fleet: FleetView | None = None

    def weight(self, client: str) -> float:
        """The client's entitlement relative to the others'."""
        return self.weights.get(client, 1)

    @property
    def equal_weights(self) -> bool:
        """Whether every client is entitled to the same."""
        return all(weight == 1 for weight in self.weights.values())
