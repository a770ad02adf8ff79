"""The arrival source: what every kind of traffic provides, the arrivals of one client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from fairbench.workloads.programs.base import Item


class Arrival(NamedTuple):
    """One program: when it arrives (s), and what it is made of where the traffic says so.

    Without an ``item`` the program is made of the run's data set, or of sampled lengths.
    """

    at_s: float
    item: Item | None = None


class ArrivalSource(Protocol):
    """When one client's programs arrive. Immutable: it can be asked again, and by another process.

    A kind of traffic is one file with a class like this. ``rng`` is the client's own stream for
    arrivals, fresh at each call; with equal streams all calls tell of the same arrivals.
    """

    @property
    def timed(self) -> bool:
        """Whether the times are given, as in a recorded trace: no seed or rate changes them."""
        ...

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        """In time order, made as needed: there may be no end to them."""
        ...

    def expected_programs(self) -> float:
        """How many there are, on average over the seeds."""
        ...

    def last_arrival_s(self, rng: random.Random) -> float:
        """When the last one is; 0 if there is none. Precondition: there is an end to them."""
        ...
