"""The arrival source: what every kind of traffic provides, the arrivals of one client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

from fairbench.workloads.items import Item


class Arrival(NamedTuple):
    """One program: when it arrives (s), and what it is made of where the traffic says so.

    Without an ``item`` the program is made of the run's data set, or of sampled lengths.
    """

    at_s: float
    item: Item | None = None


class Load(NamedTuple):
    """What a workload and the command line ask of one client's traffic.

    ``client`` is its number. It sends ``programs_per_s`` (``inf``: all at once), ``num_programs``
    at most (None: no limit) and none from ``until_s`` on; ``burstiness`` is that of its gaps.
    ``rate_given``: the rate is not the workload's, but what somebody asked for.
    """

    client: int
    programs_per_s: float
    burstiness: float
    num_programs: int | None
    until_s: float
    rate_given: bool = False


class TrafficKind(Protocol):
    """Makes the arrivals of a run's clients. ``Params`` is a frozen dataclass, as of a scheduler.

    What a kind cannot obey, such as a rate where the times are given, it refuses with a UsageError.
    """

    def usual(self, load: Load) -> ArrivalSource:
        """The arrivals of a well-behaved client."""
        ...

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> ArrivalSource:
        """Those of one who sends so many times as much, up to that fraction of the run."""
        ...


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

    def expected_programs(self, before_s: float = inf) -> float:
        """How many there are before that time, on average over the seeds."""
        ...

    def last_arrival_s(self, rng: random.Random) -> float:
        """When the last one is; 0 if there is none. Precondition: there is an end to them."""
        ...
