"""Static quotas: each client has its own part of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeAlias

from fairbench.errors import UsageError, unknown_name
from fairbench.schedulers.eviction.policy import Claimant, ClientEviction
from fairbench.schedulers.setup import Setup

ALL = 100  # in percent


@dataclass(frozen=True)
class QuotaParams:
    """Parameters of quotas. ``percent`` maps a client's name to its quota in percent of the pool.

    Clients that are not named divide the rest by weight.
    """

    percent: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for a quota outside 0 to 100%, or for a sum above 100%."""
        for client, one in self.percent.items():
            if not (isfinite(one) and 0 <= one <= ALL):
                raise ValueError(f"percent.{client} = {one:g}: must be from 0 to {ALL}")
        total = sum(self.percent.values())
        if total > ALL:
            raise ValueError(
                f"percent: the quotas add up to {total:g}%, and at most {ALL}% are allowed"
            )


def quotas_in_tokens(owner: str, params: QuotaParams, setup: Setup) -> Mapping[str, float]:
    """Return each client's quota in tokens. Raises UsageError for an unknown client."""
    for client in params.percent:
        if client not in setup.clients:
            raise unknown_name(f"client in {owner}.percent", client, setup.clients)
    others = {one: setup.weight(one) for one in setup.clients if one not in params.percent}
    rest = ALL - sum(params.percent.values())
    if others and not rest:
        raise UsageError(
            f"{owner}.percent: the quotas leave nothing for {next(iter(others))}; give "
            "this client a quota, or lower the others"
        )
    total = sum(others.values())
    percent = {**params.percent, **{one: rest * of / total for one, of in others.items()}}
    return {client: setup.pool_tokens * one / ALL for client, one in percent.items()}


class Quota(ClientEviction):
    """Keeps each client within its own quota, even if other memory is free.

    Running requests are never limited: a client whose requests need more than its quota takes
    memory from other clients, first from the one that exceeds its quota most.
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
