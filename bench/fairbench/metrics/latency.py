"""Latency percentiles that stay correct if some programs never finished.

Who was still unfinished at the end of a run took longer than the run showed (right-censored); who
was refused took for ever. Leaving either out would flatter the scheduler that starved them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Floats, Ints


class Percentile(NamedTuple):
    """A percentile in seconds; if ``censored``, a lower bound that prints as "> x s".

    NaN of an empty sample, infinite where it falls among refused ones.
    """

    value_s: float
    censored: bool


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Latencies in seconds: known ones, lower bounds, and the number of refused ones."""

    known_s: Floats
    more_than_s: Floats
    refused: int

    @property
    def n(self) -> int:
        """The size of the sample, including censored and refused entries."""
        return len(self.known_s) + len(self.more_than_s) + self.refused


def pooled(samples: Sequence[Sample]) -> Sample:
    """Return the union of the samples."""
    return Sample(
        np.concatenate([one.known_s for one in samples]),
        np.concatenate([one.more_than_s for one in samples]),
        sum(one.refused for one in samples),
    )


class Ranked:
    """Sorted samples of all clients, from which percentiles are read."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self._n = np.array([sample.n for sample in samples], dtype=np.int64)
        self._begin = np.cumsum(self._n) - self._n
        known = [sample.known_s for sample in samples]
        bounds = [sample.more_than_s for sample in samples]
        refused = [sample.refused for sample in samples]
        every = np.arange(len(samples))
        counts = [list(map(len, known)), list(map(len, bounds)), refused]
        owner = np.concatenate([np.repeat(every, count) for count in counts])
        values = np.concatenate([np.empty(0), *known, *bounds, np.full(sum(refused), np.inf)])
        unknown = np.repeat([False, True, False], [sum(count) for count in counts])
        # A lower bound ranks above an equal known value: its latency is really the larger one.
        order = np.lexsort((unknown, values, owner))
        self._least, self._unknown = values[order], unknown[order]
        self._most = self._least
        if unknown.any():
            most = np.where(unknown, np.inf, values)
            self._most = most[np.lexsort((most, owner))]

    def percentiles(self, percent: float) -> list[Percentile]:
        """Return the ``percentile`` of each sample."""
        value_s, censored = np.full(len(self._n), np.nan), np.zeros(len(self._n), dtype=np.bool_)
        some = np.flatnonzero(self._n)
        rank = (self._n[some] - 1) * percent / 100
        low, high = (self._begin[some] + end(rank).astype(np.int64) for end in (np.floor, np.ceil))
        part = rank - np.floor(rank)
        least = _interpolate(self._least, low, high, part)
        open_ended = least != _interpolate(self._most, low, high, part)
        unsure = self._unknown[low] | self._unknown[high]
        # Else it may equal this known value, if the latencies censored below it are short.
        below = np.where(open_ended & ~unsure, np.nextafter(least, -np.inf), least)
        value_s[some], censored[some] = below, open_ended
        return list(map(Percentile, value_s.tolist(), censored.tolist()))


def percentile(sample: Sample, percent: float) -> Percentile:
    """Return the percentile by linear interpolation between order statistics, as numpy.

    The value is exact if the censored latencies cannot change it. Otherwise the value is the
    largest certain lower bound.
    """
    return Ranked([sample]).percentiles(percent)[0]


def mean_percentile(percentiles: list[Percentile]) -> Percentile:
    """Return the mean of clients' percentiles; censored or NaN if any of them is."""
    if not percentiles:
        return Percentile(float("nan"), False)
    mean = sum(p.value_s for p in percentiles) / len(percentiles)
    return Percentile(mean, any(p.censored for p in percentiles))


def _interpolate(ascending: Floats, low: Ints, high: Ints, part: Floats) -> Floats:
    """Interpolate between two positions; the result is infinite if it depends on infinity."""
    below, above = ascending[low], ascending[high]
    with np.errstate(invalid="ignore"):
        between = below + part * (above - below)
    found: Floats = np.where(np.isinf(below) | np.isinf(above) | (part == 0), above, between)
    return found
