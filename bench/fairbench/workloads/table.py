"""Tables of a workload file: their base, groups of clients, sizes, and presence."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fairbench.workloads.traffic.source import Arrival, ArrivalSource

MAX_CLIENTS = 1000  # limit for a workload file

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FileTable(BaseModel):
    """A table of a workload file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Group(FileTable):
    """Consecutive clients: ``count`` of them from number ``client`` on."""

    client: Annotated[int, Field(ge=0, lt=MAX_CLIENTS)]
    count: Annotated[int, Field(ge=1, le=MAX_CLIENTS)] | None = None  # a count of 1 is not stored

    @property
    def numbers(self) -> range:
        """The numbers of its clients."""
        return range(self.client, self.client + (self.count or 1))


class Sizes(FileTable):
    """Sizes by ``zipf``, or ``heavy`` first clients that send ``heavy_share`` of the total.

    By Zipf's law, client r sends in proportion to r to the power of minus ``zipf``; 0 makes all
    clients equal.
    """

    zipf: Annotated[float, Field(ge=0, le=10)] | None = None
    heavy: Annotated[int, Field(ge=1)] | None = None
    heavy_share: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.heavy is None) != (self.heavy_share is None):
            raise ValueError("heavy and heavy_share must be given together")
        if (self.zipf is None) == (self.heavy is None):
            raise ValueError("give either zipf, or heavy and heavy_share")
        return self

    def multiples(self, count: int) -> list[float]:
        """Return the factor on the rate of each of ``count`` clients; the mean is 1.

        Raises ValueError if no client is left besides the heavy ones.
        """
        if self.heavy is None or self.heavy_share is None:
            parts = [rank ** -(self.zipf or 0.0) for rank in range(1, count + 1)]
            return [part * count / sum(parts) for part in parts]
        heavy, light = self.heavy, count - self.heavy
        if light < 1:
            raise ValueError(f"heavy = {heavy}: must be below the {count} clients of its group")
        above, below = self.heavy_share / heavy, (1 - self.heavy_share) / light
        return [part * count for part in [above] * heavy + [below] * light]


def multiples(sizes: Sizes | None, count: int) -> list[float]:
    """Return the factors of ``sizes``; all 1 without sizes."""
    return [1.0] * count if sizes is None else sizes.multiples(count)


# shorter times would give millions of intervals in a run
Mean = Annotated[Positive, Field(ge=0.001)]
Interval = Annotated[tuple[NotNegative, Positive], Field(strict=False)]


class Presence(FileTable):
    """The times at which a client is present: fixed ``windows``, or random.

    A random client is present, and then absent, for exponential times of these means (s),
    independently of other clients and in the stationary state: the probability of presence at the
    beginning is ``stay_s`` over the sum. The arrivals of an absent client are left out.
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
