"""Traffic: the requests of a run or a log in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.core import OUTPUT_PRICE
from fairbench.files.times import ClockTime
from fairbench.metrics.records import REFUSED, Floats, Ints, Requests

LONG_S = 2.0  # A longer time to first token is a long wait.


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
    """Events from index ``first`` to index ``last``; ``gain`` is the events' value minus cost."""

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
    """Return the range of consecutive events with the largest net gain (gains minus cost).

    Args:
        gains: The gain of each event, such as its tokens; shape (n_events,), n_events > 0.
        cost: The cumulative cost up to each event, which never falls, shape (n_events,). The events
            i to j together cost ``cost[j] - cost[i]``.
    """
    after = np.cumsum(gains) - cost
    before = np.concatenate([[0.0], np.cumsum(gains)[:-1]]) - cost
    lowest = np.minimum.accumulate(before)
    last = int(np.argmax(after - lowest))
    first = int(np.argmin(before[: last + 1]))
    return EventStretch(first, last, float(after[last] - before[first]))
