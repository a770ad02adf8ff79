"""Floods: clients that request much more than others, and the harm to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Flags, Floats, Ints
from fairbench.metrics.traffic import Traffic, best_stretch

HEAVY = 3.0  # a client floods from this multiple of the other clients' mean rate on
LEAST_SHARE = 0.1  # part of all demand in the window; a smaller part delays hardly any client
# part of a flood's mean rate, below which the client's requests at its edges are ordinary
EDGE = 0.2
LEAST_REQUESTS = 20  # requests in the window; fewer come together by chance
PEAK = 2.5  # multiple of another client's usual peak; a smaller burst is ordinary
USUAL = 75  # percentile of the other clients' peaks: the clients above it may flood, too
MOST_FLOODS = 3  # number of floods that are named
WHOLE = 0.9  # part of the time; a flood that lasts longer has no window


class Flood(NamedTuple):
    """A client that requests much more than others, with its first and last request.

    ``share`` is its part of all demand in the window (weighted tokens), ``multiple`` its demand
    over the mean of the other clients there, without the requests of larger floods. ``throughout``
    means that the window is nearly the whole time.
    """

    client: int
    start_s: float
    end_s: float
    share: float
    multiple: float
    requests: int
    throughout: bool


def floods(traffic: Traffic, most: int = MOST_FLOODS) -> list[Flood]:
    """Return at most ``most`` floods, the largest first.

    A client's window is the one in which its demand exceeds ``HEAVY`` times the mean rate of the
    others by most. Sessions come in bursts, so a flood must exceed the busiest time of an ordinary
    client by ``PEAK``. The search for the next flood leaves out the requests of the floods found.
    """
    if traffic.span_s <= 0:
        return []
    found: list[Flood] = []
    left = np.ones(len(traffic.client), dtype=np.bool_)
    while len(found) < most and (flood := _largest(traffic, left)):
        found.append(_without_edges(traffic, left, flood))
        left &= ~requests_of(traffic, flood)
    return found


def requests_of(traffic: Traffic, flood: Flood) -> Flags:
    """Return which requests belong to a flood."""
    inside = (traffic.arrival_s >= flood.start_s) & (traffic.arrival_s <= flood.end_s)
    mine: Flags = inside & (traffic.client == flood.client)
    return mine


def _largest(traffic: Traffic, left: Flags) -> Flood | None:
    """Return the flood with the largest excess demand, among the remaining requests."""
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
    """Return the flood of a client and its excess demand; nothing without a flood."""
    stretch = best_stretch(traffic.tokens[rows], limit * traffic.arrival_s[rows])
    rows = rows[stretch.first : stretch.last + 1]
    flood = _flood(traffic, left, rows, others)
    if flood.requests < LEAST_REQUESTS:
        return []
    if flood.multiple < HEAVY or flood.share < LEAST_SHARE:
        return []
    long_s = flood.end_s - flood.start_s
    if float(traffic.tokens[rows].sum()) < PEAK * _usual_peak(traffic, left, client, long_s):
        return []
    return [(stretch.gain, flood)]


def _flood(traffic: Traffic, left: Flags, rows: Ints, others: int) -> Flood:
    start_s, end_s = traffic.arrival_s[rows[[0, -1]]].tolist()
    here = (traffic.arrival_s >= start_s) & (traffic.arrival_s <= end_s)
    mine, total = float(traffic.tokens[rows].sum()), float(traffic.tokens[here].sum())
    mean = (float(traffic.tokens[here & left].sum()) - mine) / others
    multiple = mine / mean if mean > 0 else float("inf")
    throughout = end_s - start_s >= WHOLE * traffic.span_s
    client = int(traffic.client[rows[0]])
    return Flood(client, start_s, end_s, mine / total, multiple, len(rows), throughout)


def _without_edges(traffic: Traffic, left: Flags, flood: Flood) -> Flood:
    """Return the flood without ordinary requests of its client before and after it."""
    rows = np.flatnonzero(left & requests_of(traffic, flood))
    arrival_s, tokens = traffic.arrival_s[rows], traffic.tokens[rows]
    if flood.end_s <= flood.start_s:
        return flood
    rate = EDGE * float(tokens.sum()) / (flood.end_s - flood.start_s)
    stretch = best_stretch(tokens, rate * arrival_s)
    others = len(np.unique(traffic.client[left])) - 1
    return _flood(traffic, left, rows[stretch.first : stretch.last + 1], others)


LONGER = 3.0  # multiple of the usual wait from which on a request was delayed
LONGER_S = 1.0  # seconds beyond the usual wait from which on a delay is noticed
OFTEN = 0.25  # part of a client's requests in the time of the harm from which on it is a victim
ENOUGH = 5  # requests before the flood that give a client its own usual wait
FEW = 5  # delayed requests in total; fewer do not make a time of harm


class Victim(NamedTuple):
    """A client that waited, with its median wait during the harm and its usual wait."""

    client: int
    requests: int
    median_s: float
    usual_s: float


class Harm(NamedTuple):
    """The time in which other clients' requests were delayed, and the victims, worst first.

    The medians are taken over all victims' requests during the harm, and over their usual requests.
    ``parts`` has the harm of each flood if several floods did harm one after another.
    """

    start_s: float
    end_s: float
    victims: tuple[Victim, ...]
    median_s: float
    usual_s: float
    parts: tuple[Harm, ...] = ()


def windows(floods: Sequence[Flood]) -> list[tuple[float, float]]:
    """Return the times of floods in order; overlapping floods are merged."""
    found: list[tuple[float, float]] = []
    for one in sorted(floods, key=lambda flood: flood.start_s):
        if found and one.start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], one.end_s)
        else:
            found.append((one.start_s, one.end_s))
    return found


def harm_of(traffic: Traffic, floods: Sequence[Flood]) -> Harm | None:
    """Return the clients that waited since the first flood; None without a flood or without waits.

    A request was delayed if it waited ``LONGER`` times the usual wait: the median of the client
    before the flood, else of all the others.
    """
    known = ~np.isnan(traffic.wait_s)
    if not floods or not known.any():
        return None
    heavy = sorted({one.client for one in floods})
    good = known & ~np.isin(traffic.client, heavy)
    start_s = min(one.start_s for one in floods)
    after = np.flatnonzero(good & (traffic.arrival_s >= start_s))
    if not len(after):
        return None
    usual_s = _usual(traffic, good, start_s)
    limit_s = np.maximum(LONGER * usual_s, usual_s + LONGER_S)[traffic.client[after]]
    held_up = traffic.wait_s[after] > limit_s
    starts = [begin for begin, _ in windows(floods)]
    group = np.searchsorted(starts, traffic.arrival_s[after], "right")
    stretches = []
    for number in np.unique(group).tolist():  # the quiet time between floods belongs to no harm
        rows = np.flatnonzero(group == number)
        stretch = best_stretch(np.where(held_up[rows], 1.0, -1.0), np.zeros(len(rows)))
        rows = rows[stretch.first : stretch.last + 1]
        if held_up[rows].sum() >= FEW:
            stretches.append(rows)
    if not stretches:
        return None
    parts = [_harm(traffic, after[rows], held_up[rows], usual_s) for rows in stretches]
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate(stretches)
    return _harm(traffic, after[rows], held_up[rows], usual_s)._replace(parts=tuple(parts))


def _harm(traffic: Traffic, rows: Ints, held_up: Flags, usual_s: Floats) -> Harm:
    """Return the harm in these rows."""
    victims = _victims(traffic, rows, held_up, usual_s)
    hurt = rows[np.isin(traffic.client[rows], [one.client for one in victims])]
    return Harm(
        float(traffic.arrival_s[rows[0]]),
        float(traffic.arrival_s[rows[-1]]),
        tuple(victims),
        float(np.median(traffic.wait_s[hurt])),
        float(np.median(usual_s[traffic.client[hurt]])),
    )


def _usual(traffic: Traffic, good: Flags, start_s: float) -> Floats:
    """Return the usual wait of each client, shape (clients,)."""
    before = good & (traffic.arrival_s < start_s)
    waits = traffic.wait_s[before]
    # Without a time before the flood, the shortest quarter of all waits serves as usual.
    every = np.sort(traffic.wait_s[good])
    everybody = float(np.median(waits) if len(waits) >= ENOUGH else every[(len(every) - 1) // 4])
    usual_s = np.full(len(traffic.clients), everybody)
    for client in np.unique(traffic.client[before]).tolist():
        own = waits[traffic.client[before] == client]
        if len(own) >= ENOUGH:
            usual_s[client] = np.median(own)
    return usual_s


def _victims(traffic: Traffic, rows: Ints, held_up: Flags, usual_s: Floats) -> list[Victim]:
    """Return the clients of which at least ``OFTEN`` of the requests in these rows were delayed."""
    client = traffic.client[rows]
    found = []
    for one in np.unique(client).tolist():
        own = client == one
        if held_up[own].mean() >= OFTEN:
            median_s = float(np.median(traffic.wait_s[rows[own]]))
            found.append(Victim(one, int(own.sum()), median_s, float(usual_s[one])))
    return sorted(found, key=lambda victim: -victim.median_s)


def _usual_peak(traffic: Traffic, left: Flags, client: int, long_s: float) -> float:
    """Return the demand of an ordinary other client in its busiest time: the third quartile."""
    peaks = []
    for other in np.unique(traffic.client[left]).tolist():
        rows = left & (traffic.client == other)
        arrival_s = traffic.arrival_s[rows]
        total = np.concatenate([[0.0], np.cumsum(traffic.tokens[rows])])
        after = np.searchsorted(arrival_s, arrival_s + long_s, "right")
        if other != client:
            peaks.append(float((total[after] - total[:-1]).max()))
    return float(np.percentile(peaks, USUAL, method="lower")) if peaks else 0.0
