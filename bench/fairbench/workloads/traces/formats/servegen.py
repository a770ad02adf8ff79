"""ServeGen's clients: rates and burstiness in ten-minute windows, and tables of lengths.

Each line is a client: ``windows`` of [start, requests/s, coefficient of variation of the gaps,
Gamma or Weibull, ...] and ``lens``, for each start the values and probabilities of ``input_tokens``
and ``output_tokens``, as converted from data/ of alibaba/ServeGen (f891d11). Clients without tables
of lengths are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import isfinite
from typing import Any

from fairbench.errors import DataError, UsageError, shortened
from fairbench.files.json_text import Place
from fairbench.records.layout import Record
from fairbench.workloads.traces.format import Asked
from fairbench.workloads.traces.renewal import LAWS, Lengths, Window, WindowedClient, WindowedTrace
from fairbench.workloads.traces.rows import MAX_INPUT, MAX_OUTPUT, MAX_S

WIDTH_S = 600.0
# requests of a window that are drawn at once; the largest measured window has 1.2 million
MAX_COUNT = 3 * 10**6


class ServeGen:
    """The format ``servegen``."""

    name = "servegen"

    def fits(self, first: Record) -> bool:
        return {"client", "windows", "lens"} <= set(first)

    def trace(self, records: Iterator[Place], asked: Asked) -> WindowedTrace:
        """Return the trace of a file's windows. Raises DataError naming line and field."""
        if asked.names:
            raise UsageError(
                f"--map {next(iter(asked.names))}: not supported for ServeGen, whose files "
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
            raise DataError(f"{last}: must hold at least one client with windows and lengths")
        asked.notes["unit"] = "s"
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
        raise DataError(f"{where}: client = {shortened(repr(name))}: must be a number or a text")
    found = [_numbers(window, where) for window in record["windows"]]
    starts = [start_s for start_s, *_ in found]
    width_s = min((b - a for a, b in pairwise(starts)), default=WIDTH_S)
    if width_s <= 0:
        raise DataError(f"{where}: windows: must be sorted by time")
    width_s = min(width_s, WIDTH_S)
    windows = [
        Window(start_s, width_s, round(rate * width_s), cv, law) for start_s, rate, cv, law in found
    ]
    return WindowedClient(str(name), tuple(windows), tuple(_lengths(record["lens"], where)))


def _numbers(window: Any, where: str) -> tuple[float, float, float, str]:
    if isinstance(window, list) and len(window) >= 4 and window[3] in LAWS:
        numbers = window[:3]
        known = all(_is_number(one) and 0 <= one < MAX_S for one in numbers)
        if known and numbers[1] * WIDTH_S <= MAX_COUNT:
            return float(numbers[0]), float(numbers[1]), float(numbers[2]), window[3]
    raise DataError(
        f"{where}: windows: {shortened(repr(window))}: must be [start, rate, CV, "
        f"{' or '.join(map(repr, LAWS))}], with a rate of at most "
        f"{MAX_COUNT / WIDTH_S:,.0f}/s"
    )


def _lengths(tables: dict[str, Any], where: str) -> Iterator[Lengths]:
    """Yield the tables of lengths in order of the times from which they apply."""
    found = []
    for start, table in tables.items():
        try:
            found.append((float(start), table))
        except ValueError:
            raise DataError(f"{where}: lens: {shortened(repr(start))}: must be a time") from None
    for start_s, table in sorted(found, key=lambda one: one[0]):
        columns = table if isinstance(table, dict) else {}
        yield Lengths(
            start_s,
            *_table(columns.get("input_tokens"), MAX_INPUT, where),
            *_table(columns.get("output_tokens"), MAX_OUTPUT, where),
        )


def _table(table: Any, most: int, where: str) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the values of a table and their cumulative probabilities."""
    if isinstance(table, list) and len(table) == 2 and all(isinstance(one, list) for one in table):
        values, parts = table
        known = len(values) == len(parts) > 0 and all(map(_is_number, [*values, *parts]))
        if known and all(0 <= value <= most for value in values) and min(parts) >= 0 < sum(parts):
            return tuple(max(1, round(value)) for value in values), tuple(accumulate(parts))
    raise DataError(f"{where}: lens: {shortened(repr(table))}: must be [[lengths], [parts]]")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


SERVEGEN = ServeGen()
