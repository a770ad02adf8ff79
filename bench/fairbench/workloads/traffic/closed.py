"""Closed loops: users who wait for the end of a program, think, and start the next."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Annotated

from annotated_types import Ge, Le

from fairbench.errors import UsageError
from fairbench.workloads.programs.base import MeanGap
from fairbench.workloads.traffic.source import Arrival, ArrivalSource, Load

PROGRAM_S = 5.0
"""Assumed length of a program for estimates before the run."""


@dataclass(frozen=True, slots=True)
class ClosedArrivals(ArrivalSource):
    """Users with exponential think times of this mean (s). They start no programs after the end.

    The start times depend on the cluster, so the driver calls each of the client's
    ``fairbench.workloads.plan``. As an ``ArrivalSource`` this class is an estimate: every program
    takes ``PROGRAM_S``.
    """

    users: int
    think_s: float
    until_s: float

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        gap_s = (self.think_s + PROGRAM_S) / self.users
        at_s = rng.random() * gap_s
        while at_s < self.until_s:
            yield Arrival(at_s)
            at_s += gap_s

    def expected_programs(self, before_s: float = inf) -> float:
        return min(before_s, self.until_s) * self.users / (self.think_s + PROGRAM_S)

    def last_arrival_s(self, rng: random.Random) -> float:
        return self.until_s


class Closed:
    """The kind ``closed``. The kind has no rate: users start as soon as the cluster answers."""

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``think_s`` is the mean of an exponential time in seconds, 0 for none."""

        users: Annotated[int, Ge(1), Le(10_000)]
        think_s: MeanGap = 0.0

    def __init__(self, params: Params) -> None:
        self.params = params

    def usual(self, load: Load) -> ClosedArrivals:
        return self._of(load, self.params.users)

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> ClosedArrivals:
        """Return the arrivals of ``rate_multiple`` times as many users."""
        load.check_whole(until_fraction, "closed", "leave until_fraction out")
        return self._of(load, max(1, round(self.params.users * rate_multiple)))

    def _of(self, load: Load, users: int) -> ClosedArrivals:
        if load.until_s == inf:
            raise UsageError(
                "num_programs: not supported for arrivals of kind closed; give duration instead"
            )
        load.check_plain("arrivals of kind closed, whose users wait for answers")
        return ClosedArrivals(users, self.params.think_s, load.until_s)
