"""Arrivals from recordings: any trace, VTC's sample of Chatbot Arena, or Azure's trace.

Kind ``azure`` replays the gaps of Azure's trace at the requested rate, as in [Preble] §4.3.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.files.formats import csv_rows, json_lines
from fairbench.workloads.items import Item
from fairbench.workloads.traces.programs import FileTraffic
from fairbench.workloads.traces.read import TraceParams, check_params, find_trace_file, read_trace
from fairbench.workloads.traffic.arrivals import (
    Arrival,
    ArrivalSource,
    Gamma,
    GammaArrivals,
    Rate,
    TrafficLoad,
)

COLUMN = "TIMESTAMP"


@dataclass(frozen=True, slots=True)
class AzureArrivals(GammaArrivals):
    """A trace's arrival gaps, scaled to mean 1 and repeated from a position that the seed sets."""

    path: str = ""

    def gaps(self, rng: random.Random) -> Iterator[float]:
        recorded = trace_gaps(self.path)
        at = rng.randrange(len(recorded))
        while True:
            yield recorded[at]
            at = (at + 1) % len(recorded)


class Azure(Gamma):
    """The kind ``azure``: the request times of a file such as Azure's LLM inference trace.

    Each client starts at a different position in the recorded trace. The scenario sets each
    client's rate, and ``--burstiness`` is not supported.
    """

    @dataclass(frozen=True)
    class Params:
        """``path`` names a CSV file (or .csv.gz), sorted by the column ``TIMESTAMP``."""

        path: str

    def arrivals(self, rates: tuple[Rate, ...], load: TrafficLoad) -> AzureArrivals:
        load.check_plain("arrivals of kind azure, whose trace sets it")
        # The trace is read now, so that errors in the file are reported before the run starts.
        trace_gaps(self.params.path)
        return AzureArrivals(rates, 1.0, load.num_programs, load.until_s, self.params.path)


@lru_cache(maxsize=4)
def trace_gaps(path: str) -> tuple[float, ...]:
    """Return the gaps between requests of a trace, scaled to mean 1.

    Two requests with equal times have a gap of 0. Raises DataError with file and line if the trace
    cannot be read.
    """
    times: list[datetime] = []
    for number, row in csv_rows(Path(path), f"arrivals {path}"):
        text = row.get(COLUMN)
        if text is None:
            raise DataError(f"{path}, line {number}: missing column {COLUMN!r}")
        try:
            # Azure's traces have seven decimals of a second; the seventh is cut off.
            times.append(datetime.fromisoformat(text.strip()[:26]))
        except ValueError:
            raise DataError(f"{path}, line {number}: {text!r} is not a time") from None
        if len(times) > 1 and times[-1] < times[-2]:
            raise DataError(
                f"{path}, line {number}: time {text!r} must not be before the time of the "
                "previous line"
            )
    if len(times) < 2 or times[0] == times[-1]:
        raise DataError(f"{path}: must have requests at two or more different times")
    mean = (times[-1] - times[0]).total_seconds() / (len(times) - 1)
    return tuple((later - before).total_seconds() / mean for before, later in pairwise(times))


DAY_S = 86_400
# The simulated clock ends after 2^63 ps (106 days); the last 6 days are kept for late answers.
MAX_PLAYED_S = 100.0 * DAY_S


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedArrivals(ArrivalSource):
    """The recorded arrivals of a client, with all times divided by ``speed``."""

    trace: FileTraffic
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
        count = self.trace.count_programs(self.client, min(before_s, self.until_s) * self.speed)
        return count if self.num_programs is None else min(count, self.num_programs)


class ReplayTraffic:
    """The arrival kind ``replay``, whose clients are the clients of a trace, sorted by name."""

    Params = TraceParams

    def __init__(self, params: TraceParams) -> None:
        check_params(params)
        self.params = params

    def usual(self, load: TrafficLoad) -> ReplayedArrivals:
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
        source = ReplayedArrivals(trace, load.client, speed, load.num_programs, load.until_s)
        self._check_length(source)
        return source

    def _check_length(self, source: ReplayedArrivals) -> None:
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
        self, load: TrafficLoad, rate_multiple: float, until_fraction: float | None
    ) -> ReplayedArrivals:
        if rate_multiple != 1 or until_fraction is not None:
            raise UsageError(
                "misbehaving: not supported for a trace, which sets the arrival times of all "
                "clients"
            )
        return self.usual(load)


# ``t`` and ``client`` must fit into the integer columns of stored records. Prompt and output
# lengths may be up to ten times the longest context of current models.
FIELDS = {"t": 1e10, "client": 2**31 - 1, "prompt_len": 10_000_000, "output_len": 10_000_000}


@dataclass(frozen=True, slots=True)
class TraceArrivals(ArrivalSource):
    """The recorded arrivals of a client in VTC's format, with all times divided by ``speed``."""

    recorded: tuple[Arrival, ...]
    speed: float = 1.0
    num_programs: int | None = None
    until_s: float = inf

    @property
    def timed(self) -> bool:
        return True

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        for at_s, item in self.recorded[: self.num_programs]:
            if at_s / self.speed >= self.until_s:
                return
            yield Arrival(at_s / self.speed, item)

    def expected_programs(self, before_s: float = inf) -> float:
        return float(sum(at_s < before_s for at_s, _ in self.arrivals(random.Random())))


class TraceTraffic:
    """The traffic kind ``trace``: recorded arrivals in VTC's format, at a speed set by the rate.

    With a rate of 1, a client's requests arrive at the recorded times. The clients of a run are the
    trace's clients in order of ids. If the run has more clients than the trace, the additional
    clients send no requests.
    """

    @dataclass(frozen=True)
    class Params:
        """``file`` is a path, or a name in a folder of ``FAIRBENCH_DATA``.

        The file has JSON lines, optionally compressed (``.gz``), in order of time. Each line has
        ``t`` (seconds), ``client``, ``prompt_len`` and ``output_len`` (tokens).
        """

        file: str

    def __init__(self, params: Params) -> None:
        self._file = params.file

    def usual(self, load: TrafficLoad) -> TraceArrivals:
        if load.programs_per_s == inf:
            raise UsageError("request_rate = inf: must be finite for a trace")
        load.check_plain("a trace, which sets the arrival times")
        by_client = list(_arrivals_by_client(find_trace_file(self._file)).values())
        mine = by_client[load.client] if load.client < len(by_client) else ()
        return TraceArrivals(mine, load.programs_per_s, load.num_programs, load.until_s)

    def misbehaving(
        self, load: TrafficLoad, rate_multiple: float, until_fraction: float | None
    ) -> TraceArrivals:
        raise UsageError(
            "misbehaving: not supported for a trace, which sets the arrival times of all clients"
        )


@lru_cache(maxsize=4)
def _arrivals_by_client(path: Path) -> Mapping[Any, tuple[Arrival, ...]]:
    found: dict[Any, list[Arrival]] = {}
    last_s = 0.0
    for number, (where, record) in enumerate(json_lines(path, f"{path}"), start=1):
        at_s, client, prompt, output = _record_values(record, where)
        if at_s < last_s:
            raise DataError(f"{where}: t = {at_s:g}: must not be before t of the previous line")
        last_s = at_s
        item = Item(f"trace/{number}", prompt, ((0, output),), turn=number)
        found.setdefault(client, []).append(Arrival(at_s, item))
    if not found:
        raise DataError(f"{path}: holds no records")
    return {client: tuple(found[client]) for client in sorted(found)}


def _record_values(record: Any, where: str) -> tuple[float, int, int, int]:
    if not isinstance(record, dict):
        raise DataError(f"{where}: must be a JSON object")
    for field in FIELDS:
        if field not in record:
            raise DataError(f"{where}: missing field {field!r}")
    values = [record[field] for field in FIELDS]
    for field, value in zip(FIELDS, values, strict=True):
        least = 1 if field.endswith("_len") else 0
        kinds = (int, float) if field == "t" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value < inf:
            raise DataError(f"{where}: field {field!r} = {value!r}: must be at least {least}")
        if value > FIELDS[field]:
            raise DataError(f"{where}: field {field!r} must be at most {FIELDS[field]:.0f}")
    at_s, client, prompt, output = values
    return float(at_s), client, prompt, output
