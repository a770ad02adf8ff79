"""A recorded trace: the time of each client's requests, and their lengths."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.files.json_text import json_lines
from fairbench.workloads.items import Item
from fairbench.workloads.traces.read import find
from fairbench.workloads.traffic.source import Arrival, ArrivalSource, Load

# Limits: ten times the longest existing context, and the range of the records.
FIELDS = {"t": 1e10, "client": 2**31 - 1, "prompt_len": 10_000_000, "output_len": 10_000_000}


@dataclass(frozen=True, slots=True)
class TraceArrivals(ArrivalSource):
    """A client's arrivals: an ``ArrivalSource``. ``speed`` 2 replays twice as fast."""

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


class Trace:
    """The kind ``trace``. A client's rate is the speed: 1 replays the trace as recorded.

    The clients of a run are those of the trace, in the order of their ids; a client without
    requests in the trace sends none.
    """

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``file`` is a path, or a name in a folder of ``FAIRBENCH_DATA``.

        The file has JSON lines, packed (``.gz``) or not, in order of time, with ``t`` (s),
        ``client``, ``prompt_len`` and ``output_len``.
        """

        file: str

    def __init__(self, params: Params) -> None:
        self._file = params.file

    def usual(self, load: Load) -> TraceArrivals:
        if load.programs_per_s == inf:
            raise UsageError("request_rate = inf: must be finite for a trace")
        load.check_plain("a trace, which sets the arrival times")
        by_client = list(_read(find(self._file)).values())
        mine = by_client[load.client] if load.client < len(by_client) else ()
        return TraceArrivals(mine, load.programs_per_s, load.num_programs, load.until_s)

    def misbehaving(
        self, load: Load, rate_multiple: float, until_fraction: float | None
    ) -> TraceArrivals:
        raise UsageError(
            "misbehaving: not supported for a trace, which sets the arrival times of all clients"
        )


@lru_cache(maxsize=4)
def _read(path: Path) -> Mapping[Any, tuple[Arrival, ...]]:
    """Read the arrivals of each client, by id in order. Raises DataError naming file and line."""
    found: dict[Any, list[Arrival]] = {}
    last_s = 0.0
    for number, (where, record) in enumerate(json_lines(path, f"{path}"), start=1):
        at_s, client, prompt, output = _values(record, where)
        if at_s < last_s:
            raise DataError(f"{where}: t = {at_s:g}: must not be before t of the previous line")
        last_s = at_s
        item = Item(f"trace/{number}", prompt, ((0, output),), turn=number)
        found.setdefault(client, []).append(Arrival(at_s, item))
    if not found:
        raise DataError(f"{path}: holds no records")
    return {client: tuple(found[client]) for client in sorted(found)}


def _values(record: Any, where: str) -> tuple[float, int, int, int]:
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
