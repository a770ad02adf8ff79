"""A crowd: runs with too many clients for a row each, shown as a distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.floods import HEAVY, LEAST_SHARE
from fairbench.report.client_table import is_crowd
from fairbench.results.store import Summary

WORST = 10
PARTS = (0.1, 0.25, 0.5, 0.75, 0.9)
STEPS = (0.25, 0.5, 0.75, 0.9, 0.99)
"""The upper ends of the ranges of the ratio to the fair share; the last range has none."""


class Lorenz(NamedTuple):
    """The fraction of all service that the smallest clients have, by their fraction of clients."""

    clients: list[float]
    service: list[float]

    @property
    def gini(self) -> float:
        """The Gini index: 0 if all have the same by weight, near 1 if one client has everything."""
        clients, service = np.asarray(self.clients), np.asarray(self.service)
        return 1 - float(np.sum(np.diff(clients) * (service[1:] + service[:-1])))

    def of_smallest(self, part: float) -> float:
        """Return the fraction that the smallest ``part`` of the clients has."""
        return float(np.interp(part, self.clients, self.service))


def lorenz(amounts: Sequence[float], weights: Sequence[float] | None = None) -> Lorenz | None:
    """Return the Lorenz curve, or None if all amounts are 0.

    A client of weight w counts as w clients with equal amounts.
    """
    amount = np.asarray(amounts, dtype=np.float64)
    weight = np.ones_like(amount) if weights is None else np.asarray(weights, dtype=np.float64)
    if not amount.sum() > 0:
        return None
    order = np.argsort(amount / weight, kind="stable")
    clients, service = (np.cumsum(values[order]) / values.sum() for values in (weight, amount))
    return Lorenz([0.0, *clients.tolist()], [0.0, *service.tolist()])


def lorenz_of_service(summary: Summary) -> Lorenz | None:
    """Return the Lorenz curve of the clients' service rates, by weight."""
    rows = summary["clients"]
    return lorenz(
        [row["service_rate_tok_s"] or 0.0 for row in rows], [row.get("weight", 1.0) for row in rows]
    )


def share_ratios(summary: Summary) -> list[float]:
    """Return the defined ratios to fair shares, smallest first."""
    found = (row["entitlement_ratio"] for row in summary["clients"])
    return sorted(one for one in found if one is not None)


def counts_by_ratio(ratios: Sequence[float]) -> Iterator[tuple[str, int]]:
    """Yield how many ratios lie in each range, smallest first."""
    numbers = np.searchsorted(np.asarray(STEPS), np.asarray(ratios), side="right")
    counts = np.bincount(numbers, minlength=len(STEPS) + 1).tolist()
    low = 0.0
    for high, count in zip(STEPS, counts, strict=False):
        yield f"{low:.0%} to {high:.0%}", count
        low = high
    yield f"{low:.0%} and more", counts[-1]


def worst_clients(summary: Summary, count: int = WORST) -> list[dict[str, Any]]:
    """Return the worst-off well-behaved clients: smallest fair share first, then highest P99.

    Several runs are combined by their means. Without ratios, below saturation, only the P99 counts.
    A client whose P99 is unknown because of unfinished programs comes before those with a known
    P99. If no client is called heavy, those that ask for as much as a flood come last.
    """
    rows = summary["clients"]
    good = [row for row in rows if not row["misbehaving"] and row["programs"]]
    demands = [_mean(row.get("demand_tok_s")) or 0.0 for row in rows]
    total, named = sum(demands), any(row["misbehaving"] for row in rows)
    heavy = {
        row["client"]
        for row, one in zip(rows, demands, strict=True)
        if not named and one * (len(rows) - 1) > HEAVY * (total - one) and one > LEAST_SHARE * total
    }

    def badness(row: dict[str, Any]) -> tuple[bool, float, float]:
        ratio, late_s = _mean(row["entitlement_ratio"]), _mean(row.get("p99_s"))
        late = -(float("inf") if late_s is None else late_s)
        return row["client"] in heavy, (float("inf") if ratio is None else ratio), late

    return sorted(good, key=badness)[:count]


def _mean(value: Any) -> float | None:
    """Return a number, or the mean if several runs are combined."""
    found: float | None = value["mean"] if isinstance(value, dict) else value
    return found


def shown_clients(combined: Summary) -> tuple[list[dict[str, Any]], str]:
    """Return the clients that get a row, and a description if not all do."""
    rows = combined["clients"]
    if not is_crowd(combined):
        return rows, ""
    worst = worst_clients(combined)
    return worst, f"the {len(worst)} of {len(rows):,} clients that are worst off"


def crowd_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield a crowd in three lines, each with a label and a text."""
    wrong = sum(row["misbehaving"] for row in summary["clients"])
    total = len(summary["clients"])
    yield "clients", f"{total:,}" + (f", {wrong:,} of them heavy" if wrong else "")
    by_weight = " by weight" if any("weight" in row for row in summary["clients"]) else ""
    if curve := lorenz_of_service(summary):
        parts = " / ".join(f"{100 * part:.0f}" for part in PARTS)
        held = " / ".join(f"{100 * curve.of_smallest(part):.1f}" for part in PARTS)
        yield "smallest", f"the {parts}% of clients with the least service{by_weight} had {held}%"
        most = max(summary["clients"], key=lambda row: row["service_rate_tok_s"] or 0.0)
        total_tok_s = sum(row["service_rate_tok_s"] or 0.0 for row in summary["clients"])
        share = (most["service_rate_tok_s"] or 0.0) / total_tok_s
        yield "largest", f"{most['client']} had {share:.1%} of the service"
        yield "Gini index", f"{curve.gini:.3f} of service{by_weight}; 0 if all had the same"


def ratio_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield a histogram of clients by their fraction of the fair share, with bars."""
    ratios = share_ratios(summary)
    for number, (label, count) in enumerate(counts_by_ratio(ratios) if ratios else ()):
        bar = "#" * round(40 * count / len(ratios)) or ("." if count else "")
        heading = "" if number else "fair share"
        yield heading, f"{label:>12} of it: {count:>5,} clients  {bar}".rstrip()


def many_keys(keys: Sequence[str], summary: Summary) -> list[str]:
    """Return a summary's keys in order, merging ``CLIENT.KEY`` of several clients."""
    names = {row["client"] for row in summary["clients"]}
    clients: dict[str, int] = {}
    for key in keys:
        client, dot, rest = key.partition(".")
        plain = not dot or client not in names
        clients[key if plain else rest] = 0 if plain else clients.get(rest, 0) + 1
    return [f"{key} of {count:,} clients" if count else key for key, count in clients.items()]
