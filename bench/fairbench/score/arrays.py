"""Columns of other people's records as arrays of numbers, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fairbench.errors import DataError, unknown_name
from fairbench.errors.validation import shortened
from fairbench.files.times import UNITS, nanoseconds, unit_of
from fairbench.metrics.records import FINISHED, REFUSED, Flags, Floats
from fairbench.results.run_tables import MAX_COUNT, MAX_WORKER, STATES
from fairbench.score.layout import Columns

COUNTS = {
    "input_tokens": (0, MAX_COUNT),
    "output_tokens": (0, MAX_COUNT),
    "cached_tokens": (0, MAX_COUNT),
    "worker": (-1, MAX_WORKER),
}
"""Fields that are whole numbers, with the least and the most that each can be."""

MOST_S = 1e12
"""Beyond that, 30,000 years, a time is a mistake, and its square no number."""

MOMENTS = ("start", "first_token", "end", "admitted")
"""Fields that are times by a clock, not lengths of time."""


class Times:
    """Reads times of one file in seconds: numbers in a unit, or ISO 8601.

    Moments since 1970 that are too large for seconds are in the unit in which they would be, unless
    somebody says another unit than seconds. Beside such moments a length of time in no unit may be
    in seconds or in theirs: ``unit_s`` None is that nobody says.
    """

    def __init__(self, where: str, unit_s: float | None, units: Mapping[str, str]) -> None:
        self._where, self._units = where, units
        self._said, self._unit_s = unit_s is not None, 1.0 if unit_s is None else unit_s
        self._guessed = "s"  # the unit of its moments, where only their size says it

    def of(self, field: str, values: Iterable[Any]) -> Floats:
        """NaN where there is none. Raises DataError naming the request."""
        known = list(values)
        if field in MOMENTS and any(isinstance(value, str) for value in known):
            return np.array([self._read(field, row, value) for row, value in enumerate(known)])
        numbers = _numbers(known, field, self._where)
        return numbers * self._scale(field, numbers)

    def sums(self, field: str, gaps: Iterable[Any]) -> Floats:
        """How long all gaps between tokens of each request are together."""
        rows = list(gaps)
        for row, values in enumerate(rows):
            if not isinstance(values, list | None):
                raise _problem(self._where, row, f"{field} must be a list of numbers")
        found = np.array([_numbers(values or [], field, self._where).sum() for values in rows])
        return found * self._scale(field, found)

    def _scale(self, field: str, numbers: Floats) -> float:
        """Seconds of a unit of the field."""
        if field in self._units:
            return UNITS[self._units[field]] / UNITS["s"]
        known = numbers[np.isfinite(numbers)]
        if self._unit_s == 1.0 and field in MOMENTS and len(known):
            self._guessed = unit_of(float(known[0]))
            return UNITS[self._guessed] / UNITS["s"]
        if not self._said and self._guessed != "s" and len(known):
            raise DataError(
                f"{self._where}: {field} = {known[0]:g}: in what unit? Its times seem to be in "
                f"{self._guessed}: say it with --time-unit, or in the name of its column, such as "
                f"{field}_{self._guessed}"
            )
        return self._unit_s

    def _read(self, field: str, row: int, value: Any) -> float:
        if value is None:
            return np.nan
        try:
            return nanoseconds(value, self._units.get(field, unit_of(value))) / UNITS["s"]
        except (ValueError, OverflowError):
            problem = f"{field} = {shortened(repr(value))}: must be a number, or an ISO 8601 time"
            raise _problem(self._where, row, problem) from None


def arrays_of(
    columns: Columns,
    where: str,
    unit_s: float | None,
    *,
    client: str,
    part: int,
    units: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The columns of one file as arrays, times absolute and in seconds; NaN is never.

    ``client`` is whose all are where none is named, ``part`` tells files' programs apart, ``units``
    are those of single fields. Raises DataError naming ``where``, the request and the field.
    """
    times = Times(where, unit_s, units or {})
    length = len(columns["input_tokens"])
    columns = {key: values for key, values in columns.items() if _any_known(values)} | {
        key: columns[key] for key in ("start", "input_tokens", "output_tokens")
    }

    def numbers(field: str) -> Floats:
        if field not in columns:
            return np.full(length, np.nan)
        return _numbers(columns[field], field, where)

    start = times.of("start", columns["start"])
    first, last = _ends(columns, start, times)
    failed = np.array([bool(error) for error in columns.get("error", [None] * length)])
    first, last = np.where(failed, np.nan, first), np.where(failed, np.nan, last)
    programs = columns.get("program", range(length))
    made = {
        "client": _names(columns.get("client", [client] * length), where),
        "program": np.array([f"{part}/{name}" for name in programs], object),
        "start": start,
        "first": first,
        "last": last,
        "admitted": times.of("admitted", columns.get("admitted", [None] * length)),
        "status": _states(columns, last, where),
        **{field: numbers(field) for field in COUNTS},
    }
    _check(made, where)
    return made


def _any_known(values: Iterable[Any]) -> bool:
    return any(value is not None for value in values)


def _ends(columns: Columns, start: Floats, times: Times) -> tuple[Floats, Floats]:
    """When first and last token came. A negative latency means never, as VTC-artifact has it."""

    def after(field: str) -> Floats:
        seconds = times.of(field, columns[field])
        return start + np.where(seconds < 0, np.nan, seconds)

    never = np.full(len(start), np.nan)
    first, last = never, never
    if "first_token" in columns:
        first = times.of("first_token", columns["first_token"])
    elif "ttft" in columns:
        first = after("ttft")
    if "end" in columns:
        last = times.of("end", columns["end"])
    elif "latency" in columns:
        last = after("latency")
    elif "itls" in columns:
        last = first + times.sums("itls", columns["itls"])
    return first, last


def _names(values: Iterable[Any], where: str) -> Any:
    names = list(values)
    if None in names:
        raise _problem(where, names.index(None), "client is missing")
    return np.array([str(name) for name in names], object)


def _numbers(values: Iterable[Any], field: str, where: str) -> Floats:
    numbers = []
    for row, value in enumerate(values):
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise ValueError
            numbers.append(np.nan if value is None else float(value))
        except (ValueError, OverflowError):
            problem = f"{field} = {shortened(repr(value))}: must be a number"
            raise _problem(where, row, problem) from None
    return np.array(numbers, dtype=np.float64)


def _states(columns: Columns, last: Floats, where: str) -> Any:
    """Given states, or: what ended is finished, anything else failed, which counts as refused."""
    if "status" not in columns:
        return np.where(np.isnan(last), REFUSED, FINISHED)
    for row, name in enumerate(columns["status"]):
        if not isinstance(name, str) or name not in STATES:
            raise _problem(where, row, str(unknown_name("status", str(name), STATES)))
    return np.array([STATES[name] for name in columns["status"]])


def _check(made: Mapping[str, Any], where: str) -> None:
    """Raise DataError naming the first request that cannot have been like that."""
    for what, rows in _impossible(made).items():
        if rows.any():
            row = int(np.argmax(rows))
            field, _, demand = what.partition(" must ")
            value = f"{field} = {made[field][row]:.17g}: must {demand}" if demand else what
            raise _problem(where, row, value)


def _impossible(made: Mapping[str, Any]) -> dict[str, Flags]:
    """What a request cannot be, and which ones are."""
    start, first, last = made["start"], made["first"], made["last"]
    ended = ~np.isnan(last)
    return {
        "start is missing": np.isnan(start),
        "a time is infinite": np.isinf(start) | np.isinf(first) | np.isinf(last),
        "a time is beyond 10^12 s": np.any(np.abs([start, first, last]) > MOST_S, axis=0),
        "its first token is before its start": first < start,
        "its end is before its first token": last < first,
        "it ended, but its first token is missing": ended & np.isnan(first),
        "it is finished, but its end is missing": (made["status"] == FINISHED) & ~ended,
        "input_tokens is missing": np.isnan(made["input_tokens"]),
        "output_tokens is missing": ended & np.isnan(made["output_tokens"]),
        **{
            f"{field} must be a whole number from {least} to {most}": _no_count(
                made[field], least, most
            )
            for field, (least, most) in COUNTS.items()
        },
        "more of its tokens are cached than it has": made["cached_tokens"] > made["input_tokens"],
    }


def _no_count(values: Floats, least: int, most: int) -> Flags:
    """Which values are known and no whole number from ``least`` to ``most``."""
    with np.errstate(invalid="ignore"):  # infinity is no whole number either
        fractions: Flags = values % 1 != 0
    return ~np.isnan(values) & (fractions | (values < least) | (values > most))


def _problem(where: str, row: int, what: str) -> DataError:
    return DataError(f"{where}: request {row + 1}: {what}")
