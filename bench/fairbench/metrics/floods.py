"""Floods: bursts in which one client sends most of the tokens, and the harm to other clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Flags, Floats, Ints
from fairbench.metrics.traffic import Traffic, best_stretch

# In a flood, a client demands at least three times the mean demand of the other clients.
HEAVY = 3.0
LEAST_SHARE = 0.1  # A flood is at least this fraction of all demand.
LEAST_REQUESTS = 20  # A flood has at least this many requests; fewer requests may be chance.
PEAK = 2.5  # In a flood, a client demands at least this multiple of a usual peak demand.
# The usual peak demand is the third quartile of other clients' peak demands, because higher peaks
# may themselves be floods.
USUAL = 75
EDGE = 0.2  # The start and end of a flood are cut off while below this part of its mean rate.
MOST_FLOODS = 3
WHOLE = 0.9  # A flood that lasts for at least this fraction of the traffic counts as continuous.


class Flood(NamedTuple):
    """A period in which a client requests much more than other clients.

    - ``client`` is the client's index. The flood's first and last requests arrive at ``start_s``
      and ``end_s``.
    - ``share`` is the client's share of all demand during the flood, in weighted tokens.
    - ``multiple`` is the client's demand during the flood divided by the mean demand of the other
      clients. The mean excludes requests of larger floods.
    - ``requests`` is the number of the client's requests in the flood.
    - ``throughout`` is true if the flood lasts nearly as long as the traffic.
    - ``rest`` is the client's share of all demand without the demand of larger floods.
    """

    client: int
    start_s: float
    end_s: float
    share: float
    multiple: float
    requests: int
    throughout: bool
    rest: float = 0.0


def floods(traffic: Traffic, most: int = MOST_FLOODS) -> list[Flood]:
    """Return at most ``most`` floods, the largest first.

    A client's flood is the period with its largest excess demand. Excess demand is demand above
    ``HEAVY`` times the mean demand of the other clients. Because sessions come in bursts, a flood
    of length t must have at least ``PEAK`` times as many tokens as other clients' usual peak in a
    period of length t. Each search for a flood ignores the requests of the floods that earlier
    searches found.
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
    """Return a mask of the requests that belong to the flood."""
    inside = (traffic.arrival_s >= flood.start_s) & (traffic.arrival_s <= flood.end_s)
    mine: Flags = inside & (traffic.client == flood.client)
    return mine


def _largest(traffic: Traffic, left: Flags) -> Flood | None:
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
    """Return a list with a client's flood and its excess demand; empty if there is no flood.

    Demand above ``limit`` tokens per second counts as excess. ``rows`` are the client's requests,
    and ``others`` is the number of other clients.
    """
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
    remaining = float(traffic.tokens[here & left].sum())
    mean = (remaining - mine) / others
    multiple = mine / mean if mean > 0 else float("inf")
    throughout = end_s - start_s >= WHOLE * traffic.span_s
    client = int(traffic.client[rows[0]])
    share, rest = mine / total, mine / remaining
    return Flood(client, start_s, end_s, share, multiple, len(rows), throughout, rest)


def _without_edges(traffic: Traffic, left: Flags, flood: Flood) -> Flood:
    """Return the flood without the ordinary requests at the beginning and end of the flood."""
    rows = np.flatnonzero(left & requests_of(traffic, flood))
    arrival_s, tokens = traffic.arrival_s[rows], traffic.tokens[rows]
    if flood.end_s <= flood.start_s:
        return flood
    rate = EDGE * float(tokens.sum()) / (flood.end_s - flood.start_s)
    stretch = best_stretch(tokens, rate * arrival_s)
    others = len(np.unique(traffic.client[left])) - 1
    return _flood(traffic, left, rows[stretch.first : stretch.last + 1], others)


# A request counts as delayed if its wait exceeds both ``DELAYED`` times the usual wait and the
# usual wait plus ``DELAYED_S`` seconds.
DELAYED, DELAYED_S = 3.0, 1.0
OFTEN = 0.25  # A client counts as delayed if at least this fraction of its requests was delayed.
# A client with at least five requests before the flood is compared with its own usual wait.
ENOUGH = 5
FEW = 5  # A flood counts as harmful if it delayed at least this number of requests.


class Victim(NamedTuple):
    """A client (by index) whose requests were delayed by a flood.

    From the flood's first to its last delay, the client sent ``requests`` requests, whose median
    wait was ``median_s`` seconds. ``usual_s`` is the client's usual wait in seconds.
    """

    client: int
    requests: int
    median_s: float
    usual_s: float


class Harm(NamedTuple):
    """The period in which a flood delayed the requests of other clients.

    ``victims`` are the delayed clients; the client with the longest median wait is first.
    ``median_s`` is the delayed clients' median wait in the period, and ``usual_s`` is the median of
    their usual waits (in seconds). ``parts`` has the ``Harm`` of each flood if several floods
    delayed other clients.
    """

    start_s: float
    end_s: float
    victims: tuple[Victim, ...]
    median_s: float
    usual_s: float
    parts: tuple[Harm, ...] = ()


def flood_windows(floods: Sequence[Flood]) -> list[tuple[float, float]]:
    """Return start and end (s) of each flood in order of time; overlapping floods are merged."""
    found: list[tuple[float, float]] = []
    for one in sorted(floods, key=lambda flood: flood.start_s):
        if found and one.start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], one.end_s)
        else:
            found.append((one.start_s, one.end_s))
    return found


def harm_of(traffic: Traffic, floods: Sequence[Flood]) -> Harm | None:
    """Return the harm that the floods did; None if there are no floods, no waits or no harm.

    A request was delayed if it waited more than ``DELAYED`` times the usual wait. A client's usual
    wait is its median wait before the first flood of requests. A client with few earlier requests
    has the usual wait of all clients that do not flood the server.
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
    limit_s = np.maximum(DELAYED * usual_s, usual_s + DELAYED_S)[traffic.client[after]]
    held_up = traffic.wait_s[after] > limit_s
    starts = [begin for begin, _ in flood_windows(floods)]
    group = np.searchsorted(starts, traffic.arrival_s[after], "right")
    stretches = []
    # Treat each flood separately, so that the time between two floods does not count as harm.
    for number in np.unique(group).tolist():
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
    before = good & (traffic.arrival_s < start_s)
    waits = traffic.wait_s[before]
    # With too few requests before the flood, the usual wait is the first quartile of all waits.
    every = np.sort(traffic.wait_s[good])
    everybody = float(np.median(waits) if len(waits) >= ENOUGH else every[(len(every) - 1) // 4])
    usual_s = np.full(len(traffic.clients), everybody)
    for client in np.unique(traffic.client[before]).tolist():
        own = waits[traffic.client[before] == client]
        if len(own) >= ENOUGH:
            usual_s[client] = np.median(own)
    return usual_s


def _victims(traffic: Traffic, rows: Ints, held_up: Flags, usual_s: Floats) -> list[Victim]:
    """Return the clients with many delayed requests, the longest median wait first."""
    client = traffic.client[rows]
    found = []
    for one in np.unique(client).tolist():
        own = client == one
        if held_up[own].mean() >= OFTEN:
            median_s = float(np.median(traffic.wait_s[rows[own]]))
            found.append(Victim(one, int(own.sum()), median_s, float(usual_s[one])))
    return sorted(found, key=lambda victim: -victim.median_s)


def _usual_peak(traffic: Traffic, left: Flags, client: int, long_s: float) -> float:
    """Return the third quartile of other clients' peak demands, in weighted tokens.

    A peak demand is the most that a client requests in any ``long_s`` seconds.
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
