"""Traffic: the clients, times and waits of requests, and overloads, from any record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.files.times import Clock
from fairbench.metrics.records import REFUSED, Floats, Ints, Requests


class Traffic(NamedTuple):
    """Requests in order of arrival, with one element for each in every array.

    ``client`` indexes ``clients``, ``tokens`` are weighted tokens (input + 2 x output), ``wait_s``
    is the time to the first token: infinite for a request without an answer, NaN if not recorded.
    ``clock`` has the dates of a log; None if times are relative to a start only.
    """

    clients: tuple[str, ...]
    client: Ints
    arrival_s: Floats
    tokens: Floats
    wait_s: Floats
    clock: Clock | None = None

    @property
    def span_s(self) -> float:
        """The time from the first request to the last."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self.arrival_s) else 0.0

    @property
    def knows_waits(self) -> bool:
        """Return whether any wait was recorded."""
        return not np.isnan(self.wait_s).all()


class Stretch(NamedTuple):
    """The events ``first`` to ``last`` of a sequence, and their total."""

    first: int
    last: int
    gain: float


def traffic_of(clients: Sequence[str], requests: Requests, horizon_s: float) -> Traffic:
    """Return the requests of a run as traffic.

    A request that still waits at the horizon has waited at least until then.
    """
    weights = ServiceWeights()
    output = np.where(requests.output_tokens > 0, requests.output_tokens, requests.max_new_tokens)
    first_s = np.where(np.isnan(requests.first_token_s), horizon_s, requests.first_token_s)
    waited_s = np.where(requests.status == REFUSED, np.inf, first_s - requests.arrival_s)
    order = np.argsort(requests.arrival_s, kind="stable")
    tokens = weights.extend * requests.input_tokens + weights.output * output
    return Traffic(
        tuple(clients),
        requests.client[order],
        requests.arrival_s[order],
        tokens[order],
        waited_s[order],
    )


def best_stretch(gains: Floats, cost: Floats) -> Stretch:
    """Return the stretch of events with the largest total gain minus the cost of its length.

    ``gains`` is each event's gain, shape (n,), at least one. ``cost`` is the ascending cost up to
    each event: a stretch pays the cost from its first event to its last.
    """
    after = np.cumsum(gains) - cost
    before = np.concatenate([[0.0], np.cumsum(gains)[:-1]]) - cost
    lowest = np.minimum.accumulate(before)
    last = int(np.argmax(after - lowest))
    first = int(np.argmin(before[: last + 1]))
    return Stretch(first, last, float(after[last] - before[first]))


LONG_S = 2.0  # a time to first token that users notice,
LONGER = 3.0  # and a multiple of the shortest waits: long prompts take long without any queue
SHORTEST = 5  # percentile of the waits
LEAST_LATE = 20  # requests that wait long; fewer are not an overload
MOSTLY = 0.5  # part of a client's requests, and of the clients, from which on they count


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
