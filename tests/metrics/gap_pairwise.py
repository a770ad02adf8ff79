"""The largest gap by its definition, for every pair of clients at every instant.

This oracle takes time and memory proportional to clients times instants.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from fairbench.metrics.gap import Gap
from fairbench.metrics.records import Facts, Floats, Requests, Service
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.waiting import Backlog, Intervals
from tests.metrics.metrics_helpers import backlog_of, step_ends


class _Pair(NamedTuple):
    first: int
    second: int
    together: Intervals


def gaps(requests: Requests, log: Service, facts: Facts) -> list[Gap]:
    """Return the gap of every pair of clients that were backlogged together."""
    backlog = Backlog.of_requests(requests, facts)
    pairs = _pairs([backlog_of(backlog, client) for client in range(len(facts.clients))])
    if not pairs:
        return []
    times = _instants(log, pairs, facts.workers)
    states = _states(log, times, facts)
    return [_largest(states, times, pair) for pair in pairs]


def _pairs(backlog: list[Intervals]) -> list[_Pair]:
    """Return the pairs of clients that were backlogged together."""
    pairs = []
    for first, second in combinations(range(len(backlog)), 2):
        together = intersection(backlog[first], backlog[second])
        if len(together.start):
            pairs.append(_Pair(first, second, together))
    return pairs


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants that are in both sets."""
    start = np.maximum.outer(a.start, b.start)
    end = np.minimum.outer(a.end, b.end)
    both = start < end
    return Intervals(start[both], end[both])


def _instants(log: Service, pairs: list[_Pair], workers: int) -> Floats:
    """Return the instants at which the difference between two clients can be extreme.

    On one worker, a stretch moves the difference in one direction, so its two ends are enough. The
    steps of several workers interleave, so all of them are needed.
    """
    starts = np.sort(np.concatenate([pair.together.start for pair in pairs]))
    ends = np.sort(np.concatenate([pair.together.end for pair in pairs]))
    times = [starts, ends, log.start_s, log.end_s]
    if workers > 1:
        _, rows = np.unique(log.worker + 1j * log.start_s, return_index=True)
        times.append(step_ends(log, rows)[1])
    every = np.unique(np.concatenate(times))
    within = np.searchsorted(starts, every, "right") > np.searchsorted(ends, every, "left")
    chosen: Floats = every[within]
    return chosen


def _states(log: Service, times: Floats, facts: Facts) -> Floats:
    """Return each client's weighted service at each instant: after step ends, then after starts."""
    view = View.CLIENT if facts.bound and facts.bound.view == "client" else View.CHARGED
    states = np.empty((len(facts.clients), 2 * len(times)))
    for half, with_starts in enumerate((False, True)):
        states[:, half::2] = cumulative(
            log,
            view,
            times,
            len(facts.clients),
            facts.weights,
            with_starts=with_starts,
            with_ends=True,
        )
    return states / facts.client_weights[:, np.newaxis]


def _largest(states: Floats, times: Floats, pair: _Pair) -> Gap:
    """Return the largest range of a pair's difference over its intervals."""
    difference = states[pair.first] - states[pair.second]
    bounds = np.empty(2 * len(pair.together.start), dtype=np.int64)
    bounds[0::2] = 2 * np.searchsorted(times, pair.together.start)
    bounds[1::2] = 2 * np.searchsorted(times, pair.together.end) + 1  # exclusive
    high = np.maximum.reduceat(difference, bounds)[::2]
    low = np.minimum.reduceat(difference, bounds)[::2]
    at = int(np.argmax(high - low))
    return Gap(
        float(high[at] - low[at]),
        pair.first,
        pair.second,
        float(pair.together.start[at]),
        float(pair.together.end[at]),
    )
