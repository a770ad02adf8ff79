"""Churn: clients that join, leave and return. An absent client starts no program."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import Annotated, Self

from pydantic import Field, model_validator

from fairbench.workloads.table import FileTable, NotNegative, Positive
from fairbench.workloads.traffic.source import Arrival, ArrivalSource

Mean = Annotated[Positive, Field(ge=0.001)]  # below that a run would have millions
Interval = Annotated[tuple[NotNegative, Positive], Field(strict=False)]


class Presence(FileTable):
    """The times at which a client is present: fixed ``windows``, or random.

    A random client stays, and then is away, for exponential times of these means (s), independently
    of other clients and in the stationary state: the probability of being present at the beginning
    is ``stay_s`` over the sum. Arrivals of an absent client do not happen.
    """

    windows: Annotated[tuple[Interval, ...] | None, Field(strict=False, min_length=1)] = None
    stay_s: Mean | None = None
    away_s: Mean | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.stay_s is None) != (self.away_s is None):
            raise ValueError("stay_s and away_s must be given together")
        if (self.windows is None) == (self.stay_s is None):
            raise ValueError("give either windows, or stay_s and away_s")
        times = [time_s for window in self.windows or () for time_s in window]
        if any(after <= before for before, after in pairwise(times)):
            raise ValueError(
                "windows: must be a list of [from, until] in seconds, in order and without overlap"
            )
        return self

    def intervals(self, rng: random.Random) -> Iterator[tuple[float, float]]:
        """Yield the intervals in which the client is present, in order; random ones never end.

        ``rng`` is the client's own stream for this purpose, fresh at each call.
        """
        if self.stay_s is None or self.away_s is None:
            yield from self.windows or ()
            return
        now_s = 0.0
        if rng.random() >= self._share:
            now_s = rng.expovariate(1 / self.away_s)
        while True:
            end_s = now_s + rng.expovariate(1 / self.stay_s)
            yield now_s, end_s
            now_s = end_s + rng.expovariate(1 / self.away_s)

    def kept(self, arrivals: Iterable[Arrival], rng: random.Random) -> Iterator[Arrival]:
        """Yield the arrivals at which the client is present."""
        intervals = self.intervals(rng)
        start_s, end_s = next(intervals)
        for arrival in arrivals:
            while arrival.at_s >= end_s:
                start_s, end_s = next(intervals, (inf, inf))
                if start_s == inf:
                    return
            if arrival.at_s >= start_s:
                yield arrival

    def expected_programs(self, source: ArrivalSource, before_s: float = inf) -> float:
        """Return the expected number of a source's programs that are kept before a time."""
        if self.windows is None:
            return source.expected_programs(before_s) * self._share
        edges = [[min(before_s, time_s) for time_s in window] for window in self.windows]
        before = source.expected_programs
        return sum(before(end_s) - before(start_s) for start_s, end_s in edges)

    @property
    def _share(self) -> float:
        """The fraction of time in which a client with random presence is present."""
        stay_s, away_s = self.stay_s or 1.0, self.away_s or 0.0
        return stay_s / (stay_s + away_s)
