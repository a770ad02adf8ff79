"""Latency percentiles that stay true when some programs never finished.

Who was still unfinished at the end of a run took longer than the run showed (right-censored); who
was refused took for ever. Leaving either out would flatter the scheduler that starved them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, isinf
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Facts,
    Flags,
    Floats,
    Programs,
    Requests,
    Window,
)


class Percentile(NamedTuple):
    """``value_s`` seconds, or, where ``censored``, certainly more than that (print "> x s").

    NaN of an empty sample, infinite where it falls among refused ones.
    """

    value_s: float
    censored: bool


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Latencies in seconds: known ones, lower bounds of unknown ones, and the number refused."""

    known_s: Floats
    more_than_s: Floats
    refused: int

    @property
    def n(self) -> int:
        """Its size, everything counted."""
        return len(self.known_s) + len(self.more_than_s) + self.refused


class Ranked:
    """A sample in order, of which percentiles are read."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.n = sample.n
        self._unknown: Flags | None = None  # which are lower bounds, if some are
        known, bounds, refused = sample.known_s, sample.more_than_s, sample.refused
        if not len(bounds) and not refused:
            self._least = self._most = np.sort(known)
            return
        values = np.concatenate([known, bounds, np.full(refused, np.inf)])
        unknown = np.zeros(self.n, dtype=np.bool_)
        unknown[len(known) : len(values) - refused] = True
        # A lower bound ranks above an equal known value: its latency is really the larger one.
        order = np.lexsort((unknown, values))
        self._least, self._unknown = values[order], unknown[order]
        self._most = np.sort(np.where(unknown, np.inf, values))

    def percentile(self, percent: float) -> Percentile:
        """As ``percentile`` of the sample."""
        if not self.n:
            return Percentile(float("nan"), False)
        rank = (self.n - 1) * percent / 100
        least = _interpolate(self._least, rank)
        if self._unknown is None or least == _interpolate(self._most, rank):
            return Percentile(least, False)
        if self._unknown[floor(rank) : ceil(rank) + 1].any():
            return Percentile(least, True)
        # The percentile may equal this known value, if the latencies censored below it are short.
        return Percentile(float(np.nextafter(least, -np.inf)), True)


def percentile(sample: Sample, percent: float) -> Percentile:
    """The percentile by linear interpolation between order statistics (numpy's default).

    It is exact if it is the same whatever the censored latencies turn out to be; otherwise the
    value is the largest one that it is certain to exceed.
    """
    return Ranked(sample).percentile(percent)


def mean_percentile(percentiles: list[Percentile]) -> Percentile:
    """The mean of several clients' percentiles; censored if any is, NaN if any is or none given."""
    if not percentiles:
        return Percentile(float("nan"), False)
    mean = sum(p.value_s for p in percentiles) / len(percentiles)
    return Percentile(mean, any(p.censored for p in percentiles))


def program_latency(programs: Programs, chosen: Flags, horizon_s: float) -> Sample:
    """Finish minus arrival of the chosen programs."""
    own = programs.take(chosen)
    latency = own.finish_s - own.arrival_s
    return Sample(
        latency[own.status == FINISHED],
        horizon_s - own.arrival_s[own.status == UNFINISHED],
        int(np.count_nonzero(own.status == REFUSED)),
    )


def time_to_first_token(
    requests: Requests, programs: Programs, chosen: Flags, horizon_s: float
) -> Sample:
    """First token minus arrival of the requests of the chosen programs.

    Requests that an unfinished program had yet to make are censored at 0 s: a starved client makes
    fewer requests, and would otherwise be judged by the lucky ones.
    """
    own = requests.take(np.isin(requests.program_id, programs.program_id[chosen]))
    answered = ~np.isnan(own.first_token_s)
    refused = ~answered & (own.status == REFUSED)
    waiting = own.arrival_s[~answered & ~refused]
    cut_short = programs.take(chosen & (programs.status == UNFINISHED))
    unmade = int(np.maximum(0, cut_short.demand_requests - cut_short.requests).sum())
    return Sample(
        (own.first_token_s - own.arrival_s)[answered],
        np.concatenate([horizon_s - waiting, np.zeros(unmade)]),
        int(np.count_nonzero(refused)),
    )


def client_sample(
    requests: Requests, programs: Programs, facts: Facts, window: Window, client: int
) -> Sample:
    """A client's latencies in the run's metric, over its programs that arrived in the window."""
    arrival = programs.arrival_s
    chosen = (arrival >= window.start_s) & (arrival < window.end_s) & (programs.client == client)
    if facts.latency == "ttft":
        return time_to_first_token(requests, programs, chosen, facts.horizon_s)
    return program_latency(programs, chosen, facts.horizon_s)


def _interpolate(ascending: Floats, rank: float) -> float:
    """The value at a fractional rank, infinite if it leans on an infinite one."""
    low, part = floor(rank), rank - floor(rank)
    below = float(ascending[low])
    if part == 0 or isinf(below):
        return below
    above = float(ascending[low + 1])
    return above if isinf(above) else below + part * (above - below)
