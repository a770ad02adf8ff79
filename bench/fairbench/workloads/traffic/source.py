"""The arrival source: the interface of every kind of traffic, the arrivals of one client."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import NamedTuple, Protocol

from fairbench.errors import UsageError
from fairbench.workloads.items import Item


class Arrival(NamedTuple):
    """A program's arrival time (s), and its content if the traffic provides it.

    Without an ``item`` the program uses the run's data set, or sampled lengths.
    """

    at_s: float
    item: Item | None = None


class Load(NamedTuple):
    """The traffic that a workload and the command line request from one client.

    ``client`` is its number. The client sends ``programs_per_s`` (``inf``: all at once), at most
    ``num_programs`` (None: no limit) and none from ``until_s`` on. ``burstiness`` shapes its gaps.
    ``rate_given`` marks a rate that a user requested instead of the workload's.
    """

    client: int
    programs_per_s: float
    burstiness: float
    num_programs: int | None
    until_s: float
    rate_given: bool = False

    def check_plain(self, of: str) -> None:
        """Raise UsageError for a burstiness, because ``of`` sets the gaps between programs."""
        if self.burstiness != 1:
            raise UsageError(
                f"burstiness = {self.burstiness:g}: not supported for {of}; leave burstiness out"
            ).of("burstiness")

    def check_whole(self, until_fraction: float | None, kind: str, advice: str) -> None:
        """Raise UsageError with an advice if a heavy client of this kind is to end early."""
        if until_fraction is not None:
            raise UsageError(
                f"misbehaving client {self.client}: until_fraction = {until_fraction:g}: not "
                f"supported for arrivals of kind {kind}; {advice}"
            )


class TrafficKind(Protocol):
    """The arrivals of a run's clients. ``Params`` is a frozen dataclass.

    A kind refuses a parameter that it cannot obey, such as a rate with given times, with a
    UsageError.
    """

    def usual(self, load: Load) -> ArrivalSource:
        """Return the arrivals of a well-behaved client."""
        ...

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> ArrivalSource:
        """Return the arrivals of a client that is heavy until a fraction of the run, or always."""
        ...


class ArrivalSource(Protocol):
    """A client's arrival times.

    A source is immutable, so that several processes can use the same source.

    A kind of traffic is one file with such a class. ``rng`` is the client's own stream for
    arrivals, fresh at each call; equal streams give equal arrivals.
    """

    @property
    def timed(self) -> bool:
        """Return whether the times are fixed, as in a trace, regardless of seed and rate."""
        return False

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        """Yield the arrivals in time order, created as needed; they may be endless."""
        ...

    def expected_programs(self, before_s: float = inf) -> float:
        """Return the expected number of arrivals before a time, over all seeds."""
        ...

    def last_arrival_s(self, rng: random.Random) -> float:
        """Return the time of the last arrival; 0 without arrivals. Precondition: arrivals end."""
        return max((at_s for at_s, _ in self.arrivals(rng)), default=0.0)
