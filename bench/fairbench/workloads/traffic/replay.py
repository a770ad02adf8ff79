"""The traffic of a trace file: every client's programs, when and as they were recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from fairbench.errors import UsageError
from fairbench.workloads.traces.read import TraceParams, check_params, read_trace
from fairbench.workloads.traces.trace import Trace
from fairbench.workloads.traffic.source import Arrival, Load


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """One client's arrivals: an ``ArrivalSource``."""

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

    def expected_programs(self) -> float:
        count = self.trace.count(self.client, self.until_s * self.speed)
        return count if self.num_programs is None else min(count, self.num_programs)

    def last_arrival_s(self, rng: random.Random) -> float:
        return max((at_s for at_s, _ in self.arrivals(rng)), default=0.0)


class Replay:
    """The kind ``replay``. Clients are those of the trace in the order of their names."""

    Params = TraceParams

    def __init__(self, params: TraceParams) -> None:
        check_params(params)
        self._params = params

    def usual(self, load: Load) -> Replayed:
        if load.burstiness != 1:
            raise UsageError(f"burstiness = {load.burstiness:g}: the times of a trace are given")
        if load.rate_given:
            raise UsageError("request_rate: the times of a trace are given; give time_scale")
        trace = read_trace(self._params).trace
        if load.client >= len(trace.clients):
            raise UsageError(f"clients: the trace has {len(trace.clients)}, and no others")
        speed = self._params.time_scale
        return Replayed(trace, load.client, speed, load.num_programs, load.until_s)

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> Replayed:
        raise UsageError("misbehaving: the times of a trace are given, so nobody sends more")
