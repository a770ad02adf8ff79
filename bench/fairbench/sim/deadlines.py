"""Deadlines of simulated requests: the latency targets of their clients as times."""

from __future__ import annotations

from collections.abc import Iterable

from fairbench.targets import Due, RequestCosts, alone
from fairbench.workloads.plan import ClientPlan

NO_DEADLINE = Due(None, None)


class Deadlines:
    """The deadlines of requests, computed from the targets of their clients' plans.

    A target that is a multiple of the latency alone assumes an answer of ``max_new_tokens`` tokens.
    The actual length is unknown in advance, whereas metrics use the actual length.
    """

    def __init__(self, plans: Iterable[ClientPlan], costs: RequestCosts | None) -> None:
        self._targets = {plan.client: plan.targets for plan in plans if plan.targets}
        self._costs = costs

    def due(self, client: str, arrival_s: float, input_tokens: int, max_new_tokens: int) -> Due:
        """Return the deadlines of a request of this client that arrives at ``arrival_s``."""
        if client not in self._targets:
            return NO_DEADLINE
        targets = self._targets[client]
        lone = None
        if targets.of_alone:
            assert self._costs is not None, "multiples need a timing profile"
            lone = alone(self._costs, input_tokens, max_new_tokens)
        return targets.due(arrival_s, lone, max_new_tokens)
