"""Harm: the clients that waited because of a flood, how much longer than usual, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.metrics.floods import Flood
from fairbench.metrics.records import Flags, Floats, Ints
from fairbench.metrics.traffic import Traffic, best_stretch

LONGER = 3.0  # times the usual wait, from which on a request was held up
LONGER_S = 1.0  # and at least so much longer, or nobody notices
OFTEN = 0.25  # of a client's requests in the time of the harm, from which on it is a victim
ENOUGH = 5  # requests before the flood, for a usual wait of the client's own
FEW = 5  # requests held up in all: fewer are no harm that has a time


class Victim(NamedTuple):
    """A client that waited: its median wait during the harm, and its usual wait."""

    client: int
    requests: int
    median_s: float
    usual_s: float


class Harm(NamedTuple):
    """The time in which other clients' requests were delayed, and the victims, worst first.

    The medians are those of all victims' requests during the harm, and of what is usual for them.
    """

    start_s: float
    end_s: float
    victims: tuple[Victim, ...]
    median_s: float
    usual_s: float


def harm_of(traffic: Traffic, floods: Sequence[Flood]) -> Harm | None:
    """Return the clients that waited since the first flood; None without any or without waits.

    A request was held up if it waited ``LONGER`` times as long as is usual: as the median of the
    client before the flood, else of all the others.
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
    stretch = best_stretch(np.where(held_up, 1.0, -1.0), np.zeros(len(after)))
    if held_up[stretch.first : stretch.last + 1].sum() < FEW:
        return None
    inside = slice(stretch.first, stretch.last + 1)
    victims = _victims(traffic, after[inside], held_up[inside], usual_s)
    rows = after[inside][np.isin(traffic.client[after[inside]], [one.client for one in victims])]
    return Harm(
        float(traffic.arrival_s[after[stretch.first]]),
        float(traffic.arrival_s[after[stretch.last]]),
        tuple(victims),
        float(np.median(traffic.wait_s[rows])),
        float(np.median(usual_s[traffic.client[rows]])),
    )


def _usual(traffic: Traffic, good: Flags, start_s: float) -> Floats:
    """Return the usual wait of each client, shape (clients,)."""
    before = good & (traffic.arrival_s < start_s)
    waits = traffic.wait_s[before]
    # Without a time before the flood, the shortest quarter of all waits is as usual as any.
    everybody = float(np.median(waits)) if len(waits) >= ENOUGH else _quarter(traffic.wait_s[good])
    usual_s = np.full(len(traffic.clients), everybody)
    for client in np.unique(traffic.client[before]).tolist():
        own = waits[traffic.client[before] == client]
        if len(own) >= ENOUGH:
            usual_s[client] = np.median(own)
    return usual_s


def _quarter(waits: Floats) -> float:
    return float(np.sort(waits)[(len(waits) - 1) // 4])


def _victims(traffic: Traffic, rows: Ints, held_up: Flags, usual_s: Floats) -> list[Victim]:
    """Return the clients with a fraction ``OFTEN`` of their requests in these rows delayed."""
    client = traffic.client[rows]
    found = []
    for one in np.unique(client).tolist():
        own = client == one
        if held_up[own].mean() >= OFTEN:
            median_s = float(np.median(traffic.wait_s[rows[own]]))
            found.append(Victim(one, int(own.sum()), median_s, float(usual_s[one])))
    return sorted(found, key=lambda victim: -victim.median_s)
