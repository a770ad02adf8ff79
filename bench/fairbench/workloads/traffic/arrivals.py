"""The interface of arrival processes, the default Gamma process, and closed loops.

The Gamma renewal process ([DLPM] §6.1) may change its rate at given times. In a closed loop, a user
waits for the end of a program, thinks, and starts the next program.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from math import inf
from typing import Annotated, Any, NamedTuple, Protocol

from annotated_types import Ge, Le

from fairbench.errors import UsageError
from fairbench.workloads.items import Item
from fairbench.workloads.programs.base import MeanGap


class Arrival(NamedTuple):
    """The arrival of a program: its time in seconds, and its input ``item`` or None.

    A program without an ``item`` takes its input from the run's data set, or has random lengths.
    """

    at_s: float
    item: Item | None = None


class TrafficLoad(NamedTuple):
    """The traffic of one client, as the workload and the command line define it.

    Client number ``client`` sends ``programs_per_s`` programs per second; ``inf`` sends all
    programs at once. The client sends at most ``num_programs`` programs (None means no limit), and
    no programs from ``until_s`` on. ``burstiness`` is the shape of the Gamma distribution of gaps.
    ``rate_given`` is True if the user set the rate, and False if the workload file sets it.
    """

    client: int
    programs_per_s: float
    burstiness: float
    num_programs: int | None
    until_s: float
    rate_given: bool = False

    def check_plain(self, of: str) -> None:
        """Raise UsageError if burstiness is set, which arrivals of kind ``of`` do not support."""
        if self.burstiness != 1:
            raise UsageError(
                f"burstiness = {self.burstiness:g}: not supported for {of}; leave burstiness out"
            ).of("burstiness")

    def check_whole(self, until_fraction: float | None, kind: str, advice: str) -> None:
        """Raise UsageError if ``until_fraction`` is given; the message ends in ``advice``."""
        if until_fraction is not None:
            raise UsageError(
                f"heavy client {self.client}: until_fraction = {until_fraction:g}: not "
                f"supported for arrivals of kind {kind}; {advice}"
            )


class TrafficKind(Protocol):
    """A kind of arrival process, with a frozen dataclass ``Params`` for the kind's parameters.

    The methods raise UsageError for a load that the kind does not support, such as a given rate for
    recorded arrival times.
    """

    def usual(self, load: TrafficLoad) -> ArrivalSource:
        """Return the arrivals of a well-behaved client."""
        ...

    def misbehaving(
        self, load: TrafficLoad, rate_multiple: float, until_fraction: float | None
    ) -> ArrivalSource:
        """Return the arrivals of a heavy client at ``rate_multiple`` times the usual rate.

        The client is heavy until the fraction ``until_fraction`` of the run has passed, or to the
        end of the run if ``until_fraction`` is None.
        """
        ...


class ArrivalSource(Protocol):
    """The arrivals of a client, immutable so that several processes can share them.

    ``rng`` is the random stream for this client's arrivals. Each call of ``arrivals`` needs a new
    stream; streams with equal seeds give equal arrivals.
    """

    @property
    def timed(self) -> bool:
        """Whether the arrival times are recorded, and thus independent of seed and rate."""
        return False

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        """Yield the arrivals in order of time, created on demand; the iterator may be endless."""
        ...

    def expected_programs(self, before_s: float = inf) -> float:
        """Return the number of arrivals before ``before_s`` seconds, averaged over all seeds."""
        ...

    def last_arrival_s(self, rng: random.Random) -> float:
        """Return the time of the last arrival in a finite stream, or 0 if there are no arrivals."""
        return max((at_s for at_s, _ in self.arrivals(rng)), default=0.0)


class Rate(NamedTuple):
    """A rate in programs/s that applies from ``start_s`` on; ``inf`` sends all programs at once."""

    start_s: float
    programs_per_s: float


@dataclass(frozen=True, slots=True)
class GammaArrivals(ArrivalSource):
    """The arrivals of a Gamma process with given rates.

    The arrivals end after ``num_programs`` programs (None means no limit) or at ``until_s``,
    whichever comes first. ``burstiness`` is the shape of the Gamma distribution of gaps.
    """

    rates: tuple[Rate, ...]
    burstiness: float = 1.0
    num_programs: int | None = None
    until_s: float = inf

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        for number, at_s in enumerate(arrival_times(self.gaps(rng), self.rates)):
            if number == self.num_programs or at_s >= self.until_s:
                return
            yield Arrival(at_s)

    def gaps(self, rng: random.Random) -> Iterator[float]:
        """Yield gaps with mean 1, without end; the gaps are later divided by the rate."""
        return gamma_gaps(rng, self.burstiness)

    def expected_programs(self, before_s: float = inf) -> float:
        until_s = min(before_s, self.until_s)
        ends = [rate.start_s for rate in self.rates[1:]] + [until_s]
        arriving = sum(
            rate.programs_per_s * max(0.0, min(end_s, until_s) - rate.start_s)
            for rate, end_s in zip(self.rates, ends, strict=True)
        )
        return arriving if self.num_programs is None else min(arriving, self.num_programs)


class Gamma(TrafficKind):
    """The kind ``gamma``: arrivals with the requested rates and burstiness."""

    @dataclass(frozen=True)
    class Params:
        """No parameters, because the scenario and the command line set rate and burstiness."""

    def __init__(self, params: Any) -> None:
        self.params = params

    def usual(self, load: TrafficLoad) -> GammaArrivals:
        return self.arrivals((Rate(0.0, load.programs_per_s),), load)

    def misbehaving(
        self, load: TrafficLoad, rate_multiple: float, until_fraction: float | None
    ) -> GammaArrivals:
        rate, wanted = load.programs_per_s, load.num_programs
        rates: tuple[Rate, ...] = (Rate(0.0, rate * rate_multiple),)
        work = rate_multiple
        if until_fraction is not None:
            work = until_fraction * rate_multiple + (1 - until_fraction)
            if rate < inf:
                length_s = load.until_s if wanted is None else min(load.until_s, wanted / rate)
                rates = (*rates, Rate(until_fraction * length_s, rate))
        count = None if wanted is None else max(1, round(wanted * work))
        return self.arrivals(rates, load._replace(num_programs=count))

    def arrivals(self, rates: tuple[Rate, ...], load: TrafficLoad) -> GammaArrivals:
        """Return Gamma arrivals at ``rates``; the rate in ``load`` is ignored."""
        return GammaArrivals(rates, load.burstiness, load.num_programs, load.until_s)


def gamma_gaps(rng: random.Random, burstiness: float) -> Iterator[float]:
    """Yield gaps between arrivals from a Gamma distribution with mean 1 and shape ``burstiness``.

    The coefficient of variation of the gaps is 1/sqrt(burstiness): a burstiness of 1 gives a
    Poisson process, and an infinite burstiness gives even gaps.
    """
    if burstiness == inf:
        yield from repeat(1.0)
    while True:
        yield rng.gammavariate(burstiness, 1 / burstiness)


def arrival_times(gaps: Iterator[float], rates: tuple[Rate, ...]) -> Iterator[float]:
    """Yield arrival times in seconds.

    Each of ``gaps``, whose mean is 1, is divided by the arrival rate at that time.
    """
    now, piece = rates[0].start_s, 0
    for unit in gaps:
        gap = unit
        while True:
            rate = rates[piece].programs_per_s
            end = rates[piece + 1].start_s if piece + 1 < len(rates) else inf
            if now + gap / rate <= end:
                break
            gap -= (end - now) * rate
            now, piece = end, piece + 1
        now += gap / rate
        yield now


PROGRAM_S = 5.0
"""The assumed duration of a program in seconds, for estimates before the run."""


@dataclass(frozen=True, slots=True)
class ClosedArrivals(ArrivalSource):
    """``users`` users in closed loops with exponential think times of mean ``think_s`` seconds.

    Users start no programs after ``until_s`` seconds. During a run, ``plan.User`` starts the
    programs, because start times depend on the speed of the cluster. Before a run, start times are
    estimated, as if each program took ``PROGRAM_S`` seconds.
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
    """The kind ``closed``: users in closed loops, who send programs at the pace of the answers."""

    @dataclass(frozen=True)
    class Params:
        """The number of users per client, and their mean think time in seconds."""

        users: Annotated[int, Ge(1), Le(10_000)]
        think_s: MeanGap = 0.0

    def __init__(self, params: Params) -> None:
        self.params = params

    def usual(self, load: TrafficLoad) -> ClosedArrivals:
        return self._closed_arrivals(load, self.params.users)

    def misbehaving(
        self, load: TrafficLoad, rate_multiple: float, until_fraction: float | None
    ) -> ClosedArrivals:
        """Return the arrivals of a heavy client with ``rate_multiple`` x ``users`` users."""
        load.check_whole(until_fraction, "closed", "leave until_fraction out")
        return self._closed_arrivals(load, max(1, round(self.params.users * rate_multiple)))

    def _closed_arrivals(self, load: TrafficLoad, users: int) -> ClosedArrivals:
        if load.until_s == inf:
            raise UsageError(
                "num_programs: not supported for arrivals of kind closed; give duration instead"
            )
        load.check_plain("arrivals of kind closed, whose users wait for answers")
        return ClosedArrivals(users, self.params.think_s, load.until_s)
