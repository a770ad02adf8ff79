"""Metrics that compare runs: service relative to the best fair share, and sharing incentives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from fairbench.metrics.fairness import least, max_min
from fairbench.metrics.reasons import NAN, NO_VICTIM, NOT_ALONE, NOT_CONTENDED, Noted

ClientRow = Mapping[str, Any]
HEAVY = "the client is heavy"
LIVE = "only for simulated runs, because a client alone is simulated"
UNDEFINED = "its latency is undefined on the shared cluster"
UNDEFINED_ALONE = "its latency is undefined alone on its part of the cluster"
TWO_BOUNDS = "both latencies are only lower bounds"


class RunBeside:
    """The summary of a run, with results of other runs of the same configuration and seed.

    - ``best_tok_s`` is the highest service rate of any scheduler, in weighted tokens/s.
    - ``alone`` has a row for each client that was simulated alone on its part of the cluster.
    - ``contended`` is True if clients were short of service under at least one scheduler.
    """

    def __init__(
        self,
        summary: Mapping[str, Any],
        best_tok_s: float,
        alone: Sequence[ClientRow],
        *,
        contended: bool,
    ) -> None:
        self.best_tok_s = best_tok_s
        self._summary, self._contended = summary, contended
        self._clients: Sequence[ClientRow] = summary["clients"]
        self._alone = {row["client"]: row for row in alone}

    @cached_property
    def entitlement_tok_s(self) -> list[float]:
        """Each client's max-min fair share of ``best_tok_s``, in weighted tokens/s."""
        demands = [client["demand_tok_s"] or 0.0 for client in self._clients]
        weights = [client.get("weight", 1.0) for client in self._clients]
        shares: list[float] = max_min(self.best_tok_s, demands, weights).tolist()
        return shares

    @cached_property
    def best_shares(self) -> list[Noted]:
        """Each client's service rate divided by its fair share of ``best_tok_s``."""
        if not self._contended:
            return [Noted(NAN, NOT_CONTENDED)] * len(self._clients)
        rates = [client["service_rate_tok_s"] or 0.0 for client in self._clients]
        pairs = zip(rates, self.entitlement_tok_s, strict=True)
        return [Noted(rate / share if share > 0 else NAN) for rate, share in pairs]

    @property
    def least_share(self) -> Noted:
        """The lowest value of any client in ``best_shares``."""
        found = least(np.array([share.value for share in self.best_shares]))
        return Noted(found, "" if self._contended else NOT_CONTENDED)

    def incentives(self, percent: int) -> list[Noted]:
        """Return each client's sharing incentive for a latency percentile."""
        return [self._incentive(client, percent) for client in self._clients]

    def _incentive(self, client: ClientRow, percent: int) -> Noted:
        name = client["client"]
        if client["misbehaving"]:
            return Noted(NAN, HEAVY)
        if not self._summary["simulated"]:
            return Noted(NAN, LIVE)
        censored = f"clients.{name}.p{percent}_s" in self._summary["censored"]
        return incentive(client, self._alone.get(name), percent, censored=censored)

    def worst_incentive(self, percent: int) -> Noted:
        """Return the sharing incentive of the worst-off well-behaved client."""
        every = zip(self._clients, self.incentives(percent), strict=True)
        return worst([one for client, one in every if not client["misbehaving"]])


def incentive(shared: ClientRow, alone: ClientRow | None, percent: int, *, censored: bool) -> Noted:
    """Return a client's latency on the shared cluster, divided by its latency if it ran alone.

    If alone, a client has the part of the cluster that its weight gives it. A client with a latency
    ratio of at most 1 has no reason to leave the shared cluster. If one latency is only a bound,
    the ratio of the two latencies is only a bound, too.

    Args:
        shared: The client's row in the summary of the shared run.
        alone: The client's row in the summary of a run in which it runs alone, or None.
        percent: The percentile of latency that is compared, such as 95.
        censored: Whether the percentile in ``shared`` is a lower bound.
    """
    key = f"p{percent}_s"
    if alone is None:
        return Noted(NAN, NOT_ALONE)
    if shared.get(key) is None:
        return Noted(NAN, UNDEFINED)
    if not alone.get(key):
        return Noted(NAN, UNDEFINED_ALONE)
    alone_censored = key in alone["censored"]
    if censored and alone_censored:
        return Noted(NAN, TWO_BOUNDS)
    bound = ">" if censored else "<" if alone_censored else ""
    return Noted(shared[key] / alone[key], bound=bound)


def worst(ratios: Sequence[Noted]) -> Noted:
    """Return the largest latency ratio of any client, or an undefined ratio if any is undefined."""
    undefined = next((one for one in ratios if not isfinite(one.value)), None)
    if undefined or not ratios:
        return undefined or Noted(NAN, NO_VICTIM)
    at_least = max((one.value for one in ratios if one.bound != "<"), default=0.0)
    at_most = max((one.value for one in ratios if one.bound == "<"), default=0.0)
    if any(one.bound == ">" for one in ratios):
        return Noted(at_least, bound=">")
    return Noted(at_least) if at_least >= at_most else Noted(at_most, bound="<")
