"""Static quotas: each client has its own part of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fairbench.schedulers.eviction.policy import Claimant, ClientEviction
from fairbench.schedulers.eviction.quotas import QuotaParams, quotas_in_tokens
from fairbench.schedulers.setup import Setup


class Quota(ClientEviction):
    """A policy that keeps each client within its own quota, even if other memory is free.

    Running requests are never limited: a client whose requests need more than the quota takes
    memory from others, from the client that exceeds its own quota most first.
    """

    name = "quota"
    Params: TypeAlias = QuotaParams

    def __init__(self, params: QuotaParams) -> None:
        self.params = params
        self.quotas: Mapping[str, float] = {}

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self.quotas = quotas_in_tokens(self.name, self.params, setup)

    def entitled(self, client: str) -> float:
        return self.quotas[client]

    def excess(self, claimant: Claimant) -> float:
        return claimant.after - self.quotas[claimant.client]

    def limit(self, client: str) -> float | None:
        return self.quotas[client]
