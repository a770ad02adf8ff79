"""Floods: clients that ask for several times as much as others, and their times."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Flags, Ints
from fairbench.metrics.traffic import Traffic, best_stretch

HEAVY = 3.0  # times the mean rate of the other clients, from which on a client floods
LEAST_SHARE = 0.1  # of all demand in the window: less delays hardly anybody
LEAST_REQUESTS = 20  # in the window: fewer come together by chance
PEAK = 2.5  # times the usual peak of another client: less is a burst that anybody has
USUAL = 75  # percent of the other clients' peaks: the rest may flood, too
MOST_FLOODS = 3  # named ones
WHOLE = 0.9  # of the time: a flood that lasts so long has no window


class Flood(NamedTuple):
    """A client that asks for much more than others, and the first and last of these requests.

    ``share`` is its part of all demand in the window (weighted tokens), ``multiple`` its demand
    over the mean of the other clients there. ``throughout``: the window is all but the whole time.
    """

    client: int
    start_s: float
    end_s: float
    share: float
    multiple: float
    requests: int
    throughout: bool


def floods(traffic: Traffic) -> list[Flood]:
    """Return the floods, the largest first.

    The window of a client is that in which it asks for most beyond ``HEAVY`` times the mean rate of
    the others. Sessions come in bursts, so a flood must exceed the busiest time of an ordinary
    client by ``PEAK``. What a flood asks for no longer counts when the next one is looked for.
    """
    if traffic.span_s <= 0:
        return []
    found: list[Flood] = []
    left = np.ones(len(traffic.client), dtype=np.bool_)
    while len(found) < MOST_FLOODS and (flood := _largest(traffic, left)):
        found.append(flood)
        left &= ~requests_of(traffic, flood)
    return found


def requests_of(traffic: Traffic, flood: Flood) -> Flags:
    """Return which requests belong to a flood."""
    inside = (traffic.arrival_s >= flood.start_s) & (traffic.arrival_s <= flood.end_s)
    mine: Flags = inside & (traffic.client == flood.client)
    return mine


def _largest(traffic: Traffic, left: Flags) -> Flood | None:
    """Return the flood with most demand above the limit, among the remaining requests."""
    count = len(traffic.clients)
    tokens = np.bincount(traffic.client[left], traffic.tokens[left], minlength=count)
    others = int((tokens > 0).sum()) - 1
    if others < 1:
        return None
    found: list[tuple[float, Flood]] = []
    for client in np.flatnonzero(tokens).tolist():
        rows = np.flatnonzero(left & (traffic.client == client))
        limit = HEAVY * float(tokens.sum() - tokens[client]) / others / traffic.span_s
        found += _window(traffic, left, rows, client, limit, others)
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _window(
    traffic: Traffic, left: Flags, rows: Ints, client: int, limit: float, others: int
) -> list[tuple[float, Flood]]:
    """Return the flood of a client and its excess demand; nothing without a flood.

    Args:
        left: Which requests count.
        rows: The client's among them, in order.
        limit: Weighted tokens a second from which on a client floods.
        others: How many other clients there are.
    """
    arrival_s = traffic.arrival_s[rows]
    stretch = best_stretch(traffic.tokens[rows], limit * arrival_s)
    start_s, end_s = float(arrival_s[stretch.first]), float(arrival_s[stretch.last])
    requests = stretch.last - stretch.first + 1
    if requests < LEAST_REQUESTS:
        return []
    here = left & (traffic.arrival_s >= start_s) & (traffic.arrival_s <= end_s)
    mine = float(traffic.tokens[rows[stretch.first : stretch.last + 1]].sum())
    total = float(traffic.tokens[here].sum())
    mean = (total - mine) / others
    multiple = mine / mean if mean > 0 else float("inf")
    if multiple < HEAVY or mine < LEAST_SHARE * total:
        return []
    if mine < PEAK * _usual_peak(traffic, left, client, end_s - start_s):
        return []
    throughout = end_s - start_s >= WHOLE * traffic.span_s
    flood = Flood(client, start_s, end_s, mine / total, multiple, requests, throughout)
    return [(stretch.gain, flood)]


def _usual_peak(traffic: Traffic, left: Flags, client: int, long_s: float) -> float:
    """Return what an ordinary other client asks for in its busiest time: the third quartile.

    Args:
        left: Which requests count.
        client: The client that is left out.
        long_s: Length of the time, in seconds.
    """
    peaks = []
    for other in np.unique(traffic.client[left]).tolist():
        rows = left & (traffic.client == other)
        arrival_s = traffic.arrival_s[rows]
        total = np.concatenate([[0.0], np.cumsum(traffic.tokens[rows])])
        after = np.searchsorted(arrival_s, arrival_s + long_s, "right")
        if other != client:
            peaks.append(float((total[after] - total[:-1]).max()))
    return float(np.percentile(peaks, USUAL, method="lower")) if peaks else 0.0
