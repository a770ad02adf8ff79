"""Clients of ServeGen: rates and burstiness in ten-minute windows, and tables of lengths.

Each line of a ServeGen file describes a client. Each entry of ``windows`` begins with its start,
the requests per second, and the gaps' coefficient of variation and distribution (Gamma or Weibull).
``lens`` maps start times to the distributions of ``input_tokens`` and ``output_tokens``. ServeGen
files are converted from data/ of alibaba/ServeGen (f891d11). Clients without length tables are left
out.

A replay draws as many requests for a window as were measured in this window. The gaps between a
window's requests, before the first request and after the last request are drawn from the window's
distribution and scaled to fill the window. The requests of a window form a renewal process with a
given number of requests. Gamma gaps with a coefficient of variation of 1 give a Poisson process.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import inf, isfinite, lgamma, log1p
from typing import Any

from fairbench.core import Segment
from fairbench.errors import DataError, UsageError, shortened
from fairbench.files.formats import FilePlace
from fairbench.streams import stream
from fairbench.workloads.items import Recorded, RecordedCall
from fairbench.workloads.traces import MAX_INPUT, MAX_OUTPUT, MAX_S
from fairbench.workloads.traces.programs import TracedProgram
from fairbench.workloads.traces.table import TraceTable
from fairbench_logs.records.layout import Record
from fairbench_logs.traces.build import TableBuilder, TraceRow

LAWS = ("Gamma", "Weibull")
CONSTANT_BELOW = 1e-3  # Arrival gaps with a smaller coefficient of variation become constant.


@dataclass(frozen=True, slots=True)
class RenewalWindow:
    """A window of ``width_s`` seconds that begins at ``start_s`` and has ``count`` requests.

    Gaps between the requests have the distribution ``law`` and the coefficient of variation ``cv``.
    """

    start_s: float
    width_s: float
    count: int
    cv: float
    law: str


@dataclass(frozen=True, slots=True)
class LengthTable:
    """The distributions of prompt and answer lengths from ``start_s`` on."""

    start_s: float
    inputs: tuple[int, ...]
    input_sums: tuple[float, ...]
    outputs: tuple[int, ...]
    output_sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WindowedClient:
    """A client of a ServeGen file; ``windows`` and ``lengths`` are in order of time."""

    name: str
    windows: tuple[RenewalWindow, ...]
    lengths: tuple[LengthTable, ...]


class WindowedTrace:
    """The traffic of clients whose rate changes by time window; prompts share no prefix."""

    drawn, pauses = True, False
    synthetic: tuple[str, ...] = ()
    who_left_out = "requests of clients without tables of lengths"

    def __init__(self, clients: tuple[WindowedClient, ...], left_out: int, shown: str) -> None:
        self._clients, self._shown = clients, shown
        self.clients = tuple(client.name for client in clients)
        self.left_out = left_out
        windows = [window for client in clients for window in client.windows]
        self._start_s = min(window.start_s for window in windows)
        end_s = max(window.start_s + window.width_s for window in windows)
        self.span_s = end_s - self._start_s

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        for number, (at_s, read, written) in enumerate(self._drawn_requests(client, rng)):
            key = f"trace/{client}/{number}"
            call = RecordedCall((Segment(key, read),), written, written)
            yield TracedProgram(at_s / speed, Recorded(key, 0, calls=(call,)))

    def count_programs(self, client: int, until_s: float) -> float:
        begun = 0.0
        for window in self._clients[client].windows:
            within_s = until_s - (window.start_s - self._start_s)
            begun += window.count * min(1.0, max(0.0, within_s / window.width_s))
        return begun

    def table(self, seed: int, until_s: float = inf) -> TraceTable:
        """Return the requests that are drawn with ``seed`` and arrive before ``until_s``.

        Raises DataError if the requests do not fit into memory.
        """
        builder = TableBuilder(self._shown)
        builder.left_out, builder.who_left_out = self.left_out, self.who_left_out
        try:
            self._add_requests(builder, seed, until_s)
        except DataError:
            count = sum(self.count_programs(client, until_s) for client in range(len(self.clients)))
            raise DataError(
                f"{self._shown}: {count:,.0f} requests do not fit into memory; use "
                "--to to read only the first seconds of the trace"
            ) from None
        return builder.table()

    def _add_requests(self, builder: TableBuilder, seed: int, until_s: float) -> None:
        for number, name in enumerate(self.clients):
            for at_s, read, written in self._drawn_requests(
                number, stream(seed, f"{name}/arrivals")
            ):
                if at_s >= until_s:
                    break
                builder.add(TraceRow(round(at_s * 1e9), name, read, written))

    def _drawn_requests(self, client: int, rng: random.Random) -> Iterator[tuple[float, int, int]]:
        """Yield each request's time since the trace's start (s), input tokens and output tokens."""
        one = self._clients[client]
        starts = [lengths.start_s for lengths in one.lengths]
        for window in one.windows:
            lengths = one.lengths[max(0, bisect_right(starts, window.start_s) - 1)]
            for at_s in times_in(window, rng):
                read = _draw_length(lengths.inputs, lengths.input_sums, rng)
                written = _draw_length(lengths.outputs, lengths.output_sums, rng)
                yield at_s - self._start_s, read, written


def times_in(window: RenewalWindow, rng: random.Random) -> list[float]:
    """Return the arrival times in seconds of a window's requests, in ascending order."""
    gaps = [1.0] * (window.count + 1)
    if window.cv > CONSTANT_BELOW:
        if window.law == "Gamma":
            gaps = [rng.gammavariate(1 / window.cv**2, 1.0) for _ in gaps]
        else:
            shape = weibull_shape(window.cv)
            gaps = [rng.weibullvariate(1.0, shape) for _ in gaps]
    sums = list(accumulate(gaps))
    scale = window.width_s / sums[-1] if sums[-1] > 0 else 0.0
    last_s = window.start_s + window.width_s
    return [min(last_s, window.start_s + total * scale) for total in sums[:-1]]


@lru_cache(maxsize=4096)
def weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull distribution with coefficient of variation ``cv`` <= 4000."""
    # ``wanted`` is the logarithm of the ratio of the distribution's second moment to its squared
    # mean.
    low, high, wanted = 0.1, 2000.0, log1p(cv * cv)
    for _ in range(60):
        middle = (low * high) ** 0.5
        if lgamma(1 + 2 / middle) - 2 * lgamma(1 + 1 / middle) > wanted:
            low = middle
        else:
            high = middle
    return low


def _draw_length(values: tuple[int, ...], sums: tuple[float, ...], rng: random.Random) -> int:
    place = bisect_right(sums, rng.random() * sums[-1])
    return values[min(place, len(values) - 1)]


WIDTH_S = 600.0  # A window of ServeGen usually has this width in seconds.
MAX_COUNT = 3 * 10**6  # maximum requests per window; the largest measured window has 1.2 million


class ServeGen:
    """The reader of the trace format ``servegen``."""

    name, unit = "servegen", "s"

    def fits(self, first: Record) -> bool:
        return {"client", "windows", "lens"} <= set(first)

    def trace(self, records: Iterator[FilePlace], names: Mapping[str, str]) -> WindowedTrace:
        """Return the trace of a file; raise UsageError if ``names`` has columns from ``--map``.

        Raises DataError, which names the line and the field, for an invalid file.
        """
        if names:
            raise UsageError(
                f"--map {next(iter(names))}: not supported for ServeGen, whose files "
                "have no columns; leave --map out"
            )
        clients, left_out, last = [], 0, ""
        for last, record in records:
            client = _client(record, last)
            if client.lengths:
                clients.append(client)
            else:
                left_out += sum(window.count for window in client.windows)
        if not any(client.windows for client in clients):
            raise DataError(f"{last}: at least one client must have entries in windows and lens")
        return WindowedTrace(tuple(clients), left_out, last.partition(", line ")[0])


def _client(record: Any, where: str) -> WindowedClient:
    for field, kind in (("windows", list), ("lens", dict)):
        if not isinstance(record.get(field), kind):
            raise DataError(
                f"{where}: {field} = {shortened(repr(record.get(field)))}: the value has the "
                "wrong type"
            )
    name = record.get("client")
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise DataError(f"{where}: client = {shortened(repr(name))}: must be a number or string")
    found = [_window_values(window, where) for window in record["windows"]]
    starts = [start_s for start_s, *_ in found]
    width_s = min((b - a for a, b in pairwise(starts)), default=WIDTH_S)
    if width_s <= 0:
        raise DataError(f"{where}: windows: must be sorted by time")
    width_s = min(width_s, WIDTH_S)
    windows = [
        RenewalWindow(start_s, width_s, round(rate * width_s), cv, law)
        for start_s, rate, cv, law in found
    ]
    return WindowedClient(str(name), tuple(windows), tuple(_length_tables(record["lens"], where)))


def _window_values(window: Any, where: str) -> tuple[float, float, float, str]:
    if isinstance(window, list) and len(window) >= 4 and window[3] in LAWS:
        numbers = window[:3]
        known = all(_is_number(one) and 0 <= one < MAX_S for one in numbers)
        if known and numbers[1] * WIDTH_S <= MAX_COUNT:
            return float(numbers[0]), float(numbers[1]), float(numbers[2]), window[3]
    raise DataError(
        f"{where}: windows: {shortened(repr(window))}: must be [start, rate, coefficient of "
        f"variation, distribution], with a rate of at most {MAX_COUNT / WIDTH_S:,.0f}/s and the "
        f"distribution {' or '.join(map(repr, LAWS))}"
    )


def _length_tables(tables: dict[str, Any], where: str) -> Iterator[LengthTable]:
    found = []
    for start, table in tables.items():
        try:
            found.append((float(start), table))
        except ValueError:
            raise DataError(
                f"{where}: lens: key {shortened(repr(start))} must be a time in seconds"
            ) from None
    for start_s, table in sorted(found, key=lambda one: one[0]):
        columns = table if isinstance(table, dict) else {}
        yield LengthTable(
            start_s,
            *_length_table(columns.get("input_tokens"), MAX_INPUT, where),
            *_length_table(columns.get("output_tokens"), MAX_OUTPUT, where),
        )


def _length_table(table: Any, most: int, where: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if isinstance(table, list) and len(table) == 2 and all(isinstance(one, list) for one in table):
        values, parts = table
        known = len(values) == len(parts) > 0 and all(map(_is_number, [*values, *parts]))
        if known and all(0 <= value <= most for value in values) and min(parts) >= 0 < sum(parts):
            return tuple(max(1, round(value)) for value in values), tuple(accumulate(parts))
    raise DataError(
        f"{where}: lens: {shortened(repr(table))}: must be [[lengths], [parts]]; parts are the "
        "relative frequencies of the lengths"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


SERVEGEN = ServeGen()
