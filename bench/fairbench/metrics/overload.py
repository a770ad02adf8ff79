"""Overload: a time in which most clients wait long, although none of them floods."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.traffic import Traffic, best_stretch

LONG_S = 2.0  # a time to first token that a user notices,
LONGER = 3.0  # and so many times the shortest waits: long prompts take long without any queue
SHORTEST = 5  # percent of the waits
LEAST_REQUESTS = 20  # that wait long: fewer are no overload
MOST = 0.5  # of the requests of a client, and of the clients, from which on they count


class Overload(NamedTuple):
    """The time of an overload, how many clients it delays, and their waits."""

    start_s: float
    end_s: float
    clients: int
    median_s: float
    p95_s: float


def overload_of(traffic: Traffic) -> Overload | None:
    """Return the longest time in which most clients wait long; None without such a time.

    Precondition: waits are times to first token.
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
    if late.sum() < LEAST_REQUESTS:
        return None
    count = len(traffic.clients)
    asked = np.bincount(traffic.client[rows], minlength=count)
    delayed = np.bincount(traffic.client[rows[late]], minlength=count)
    hurt = int(((asked > 0) & (delayed >= MOST * asked)).sum())
    if hurt < MOST * int((asked > 0).sum()) or hurt < MOST * count:
        return None
    median_s, p95_s = np.percentile(traffic.wait_s[rows], (50, 95), method="inverted_cdf").tolist()
    first, last = traffic.arrival_s[rows[[0, -1]]].tolist()
    return Overload(first, last, hurt, median_s, p95_s)
