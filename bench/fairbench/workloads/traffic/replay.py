"""The traffic of a trace file: every client's programs at their recorded times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from fairbench.errors import UsageError
from fairbench.workloads.traces.format import Trace
from fairbench.workloads.traces.read import TraceParams, check_params, read_trace
from fairbench.workloads.traffic.source import Arrival, ArrivalSource, Load

DAY_S = 86_400
# 2^63 ps are 106 days; a part of them is reserved for unanswered requests
MAX_PLAYED_S = 100.0 * DAY_S


@dataclass(frozen=True, slots=True, eq=False)
class Replayed(ArrivalSource):
    """A client's recorded arrivals: an ``ArrivalSource``."""

    trace: Trace
    client: int
    speed: float = 1.0
    num_programs: int | None = None
    until_s: float = inf

    @property
    def timed(self) -> bool:
        return not self.trace.drawn

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        found = self.trace.programs(self.client, rng, self.speed)
        for number, (at_s, item) in enumerate(found):
            if at_s >= self.until_s or number == self.num_programs:
                return
            yield Arrival(at_s, item)

    def expected_programs(self, before_s: float = inf) -> float:
        count = self.trace.count(self.client, min(before_s, self.until_s) * self.speed)
        return count if self.num_programs is None else min(count, self.num_programs)


class Replay:
    """The kind ``replay``. Its clients are the trace's clients in the order of their names."""

    Params = TraceParams

    def __init__(self, params: TraceParams) -> None:
        check_params(params)
        self.params = params

    def usual(self, load: Load) -> Replayed:
        load.check_plain("a trace, which sets the arrival times")
        if load.rate_given:
            raise UsageError(
                "request_rate: not supported for a trace, which sets the arrival times; give "
                "time_scale instead"
            )
        trace = read_trace(self.params).trace
        if load.client >= len(trace.clients):
            raise UsageError(
                f"clients: must be {len(trace.clients)}, the number of clients of the trace"
            )
        speed = self.params.time_scale
        source = Replayed(trace, load.client, speed, load.num_programs, load.until_s)
        self._check_length(source)
        return source

    def _check_length(self, source: Replayed) -> None:
        """Raise UsageError for a trace longer than a 64-bit clock in picoseconds allows."""
        played_s = min(source.until_s, source.trace.span_s / source.speed)
        if played_s > MAX_PLAYED_S and source.num_programs is not None:
            played_s = min(played_s, source.last_arrival_s(random.Random(0)))
        if played_s > MAX_PLAYED_S:
            raise UsageError(
                f"trace {self.params.file}: lasts {played_s / DAY_S:,.0f} days at "
                f"time_scale = {source.speed:g}, and at most {MAX_PLAYED_S / DAY_S:.0f} "
                "days are allowed; give --duration or a larger --time-scale, or cut the "
                "trace with `fairbench trace cut --to`"
            )

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> Replayed:
        if rate_multiple != 1 or until_fraction is not None:
            raise UsageError(
                "misbehaving: not supported for a trace, which sets the arrival times of all "
                "clients"
            )
        return self.usual(load)
