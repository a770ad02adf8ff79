"""Overloads of a cluster: periods in which most clients of a log wait long."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.traffic import LONG_S, Traffic, best_stretch
from fairbench.report.numbers import number
from fairbench.report.traffic_lines import TTFT, window

# A wait is long if it exceeds ``LONG_S`` seconds and ``LONGER`` times the percentile ``SHORTEST``
# of all waits. This percentile rises with prompt lengths, so long prefills alone are not long
# waits.
LONGER, SHORTEST = 3.0, 5
# In an overload, at least ``LEAST_LATE`` requests have a long wait, and at least half of the
# clients are delayed. At least half of a delayed client's requests have a long wait.
LEAST_LATE, MOSTLY = 20, 0.5


class Overload(NamedTuple):
    """An overload: its start and end (s), the number of delayed clients, and the clients' waits.

    ``median_s`` and ``p95_s`` are the median and P95 wait of all requests from start to end.
    """

    start_s: float
    end_s: float
    clients: int
    median_s: float
    p95_s: float


def overload_of(traffic: Traffic) -> Overload | None:
    """Return the longest period in which most requests of most clients wait long, or None.

    Precondition: the waits of ``traffic`` are times to first token.
    """
    known = np.flatnonzero(~np.isnan(traffic.wait_s))
    if not len(known):
        return None
    waits = traffic.wait_s[known]
    shortest_s = float(np.percentile(waits, SHORTEST, method="inverted_cdf"))
    late = waits > max(LONG_S, LONGER * shortest_s)
    stretch = best_stretch(np.where(late, 1.0, -1.0), np.zeros(len(late)))
    inside = slice(stretch.first, stretch.last + 1)
    rows, late = known[inside], late[inside]
    if late.sum() < LEAST_LATE:
        return None
    count = len(traffic.clients)
    asked = np.bincount(traffic.client[rows], minlength=count)
    delayed = np.bincount(traffic.client[rows[late]], minlength=count)
    hurt = int(((asked > 0) & (delayed >= MOSTLY * asked)).sum())
    if hurt < MOSTLY * int((asked > 0).sum()) or hurt < MOSTLY * count:
        return None
    median_s, p95_s = np.percentile(traffic.wait_s[rows], (50, 95), method="inverted_cdf").tolist()
    first, last = traffic.arrival_s[rows[[0, -1]]].tolist()
    return Overload(first, last, hurt, median_s, p95_s)


def overload_line(traffic: Traffic, found: Overload, basis: str) -> str:
    """Return a sentence on an overload: how many clients wait, when, and how long."""
    why = "No single client floods:" if len(traffic.clients) > 1 else "The log has one client:"
    who = f"{found.clients:,} of {len(traffic.clients):,} clients wait"
    return (
        f"{who} long from {window(found.start_s, found.end_s, traffic.clock)}: median {TTFT} "
        f"{number(found.median_s)} s, P95 {number(found.p95_s)} s, {basis}. {why} the servers "
        "are overloaded."
    )
