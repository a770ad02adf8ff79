"""Max-min eviction: memory is taken from the client that caches most in relation to its weight."""

from __future__ import annotations

from collections.abc import Mapping

from fairbench.schedulers.eviction.policy import Claimant, ClientEviction
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.setup import Setup


class MaxMin(ClientEviction):
    """A policy that evicts from the client above its share with most unpinned memory over weight.

    The share is by weight, C w_i / W. docs/appendix/theory.md proves which clients lose no tokens.
    """

    name = "max-min"
    Params = NoParams

    def __init__(self, params: NoParams) -> None:
        self.params = params
        self.shares: Mapping[str, float] = {}

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        total = sum(map(setup.weight, setup.clients))
        of_weight = setup.pool_tokens / total
        self.shares = {client: of_weight * setup.weight(client) for client in setup.clients}

    def entitled(self, client: str) -> float:
        return self.shares[client]

    def excess(self, claimant: Claimant) -> float:
        return claimant.unpinned / self.setup.weight(claimant.client)
