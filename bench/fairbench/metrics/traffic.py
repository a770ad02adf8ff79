"""Traffic: the requests of a run or a log in order of arrival, and times of overload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.core import OUTPUT_PRICE
from fairbench.files.times import ClockTime
from fairbench.metrics.records import REFUSED, Floats, Ints, Requests


class Traffic(NamedTuple):
    """Requests in order of arrival; arrays have one element per request.

    - ``clients`` are the names of the clients, and ``client`` is an index into ``clients``.
    - ``arrival_s`` is the time in seconds at which the request arrived.
    - ``tokens`` is the size in weighted tokens (input + 2 x output).
    - ``wait_s`` is the time to first token in seconds: infinite for a request without an answer,
      and NaN if the time was not recorded.
    - ``clock`` converts times to the timestamps of a log; None if times are only known relative to
      the start.
    """

    clients: tuple[str, ...]
    client: Ints
    arrival_s: Floats
    tokens: Floats
    wait_s: Floats
    clock: ClockTime | None = None

    @property
    def span_s(self) -> float:
        """The seconds from the first arrival to the last arrival."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self.arrival_s) else 0.0

    @property
    def client_tokens(self) -> Floats:
        """The weighted tokens of each client, shape (n_clients,)."""
        tokens = np.bincount(self.client, self.tokens, minlength=len(self.clients))
        return tokens.astype(np.float64)

    @property
    def knows_waits(self) -> bool:
        """Return whether the log recorded any wait."""
        return not np.isnan(self.wait_s).all()


def weighted_tokens(input_tokens: Ints, output_tokens: Ints) -> Floats:
    """Return the sizes of requests in weighted tokens: input tokens + 2 x output tokens."""
    tokens: Floats = (input_tokens + OUTPUT_PRICE * output_tokens).astype(np.float64)
    return tokens


class EventStretch(NamedTuple):
    """Events from index ``first`` to index ``last``; ``gain`` is their total value minus cost."""

    first: int
    last: int
    gain: float


def traffic_of(clients: Sequence[str], requests: Requests, horizon_s: float) -> Traffic:
    """Return the requests of a run as a ``Traffic`` table.

    A request that was never answered counts as waiting until the end of the run, ``horizon_s``.
    """
    output = np.where(requests.output_tokens > 0, requests.output_tokens, requests.max_new_tokens)
    first_s = np.where(np.isnan(requests.first_token_s), horizon_s, requests.first_token_s)
    waited_s = np.where(requests.status == REFUSED, np.inf, first_s - requests.arrival_s)
    order = np.argsort(requests.arrival_s, kind="stable")
    return Traffic(
        tuple(clients),
        requests.client[order],
        requests.arrival_s[order],
        weighted_tokens(requests.input_tokens, output)[order],
        waited_s[order],
    )


def best_stretch(gains: Floats, cost: Floats) -> EventStretch:
    """Return the consecutive events whose sum of ``gains`` minus their ``cost`` is largest.

    Args:
        gains: The value of each event (its tokens, for example), shape (n_events,), n_events > 0.
        cost: The cumulative cost up to each event, which never falls, shape (n_events,). The events
            i to j together cost ``cost[j] - cost[i]``.
    """
    after = np.cumsum(gains) - cost
    before = np.concatenate([[0.0], np.cumsum(gains)[:-1]]) - cost
    lowest = np.minimum.accumulate(before)
    last = int(np.argmax(after - lowest))
    first = int(np.argmin(before[: last + 1]))
    return EventStretch(first, last, float(after[last] - before[first]))


# A wait is long if it exceeds ``LONG_S`` seconds and ``LONGER`` times the percentile ``SHORTEST``
# of all waits. This percentile rises with prompt lengths, so long prefills alone are not long
# waits.
LONG_S, LONGER, SHORTEST = 2.0, 3.0, 5
# A period is an overload if at least ``LEAST_LATE`` requests have a long wait, and at least half of
# the clients are delayed. A client is delayed if at least half of its requests have a long wait.
LEAST_LATE, MOSTLY = 20, 0.5


class Overload(NamedTuple):
    """An overload: start and end in seconds, number of delayed clients, and their waits.

    ``median_s`` and ``p95_s`` are the median and P95 wait of all requests during the overload.
    """

    start_s: float
    end_s: float
    clients: int
    median_s: float
    p95_s: float


def overload_of(traffic: Traffic) -> Overload | None:
    """Return the longest period in which most requests of most clients wait long, if any.

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
