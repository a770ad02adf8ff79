"""Conversion of requests' times and counts to numbers, and inference of units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fairbench.errors import DataError
from fairbench.files.times import MAX_TIME_S, UNITS, is_number, number_of, zone_of
from fairbench_logs.records import cells
from fairbench_logs.records.column_names import LENGTHS, MOMENTS
from fairbench_logs.records.log_reader import ColumnValues, FileColumns, Floats, listed, shown

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NS = UNITS["s"]
DIGITS = list("0123456789")
NEVER_NS = -(2**63)
"""The value in nanoseconds that stands for a missing time."""
LARGEST_NS = 2**62

# Times above 1e8 seconds are dates (after March 1973), because no run lasts three years.
DATED_S = 1e8
# Smallest and largest difference between the UTC offsets of two time zones, in seconds.
ZONE_S, MOST_ZONE_S = 900.0, 26 * 3600.0
# Days since 1900, as spreadsheets write dates, for the years 2000 to 2099.
SERIAL_DAYS = (36_526, 73_050)
APART = 100  # A date that is at least this multiple of another time has another clock or unit.

SLOWEST_TOKEN_S = 2.0  # longest plausible time per token of a fast answer, in seconds
SLOWEST_ANSWER_S = 20.0  # longest plausible time of a fast answer with one token, in seconds
FASTEST_TOKEN_S = 2e-5  # shortest plausible time per token of a slow answer, in seconds
# Shortest plausible times of a slow answer whose unit is only inferred from the start times' name.
INFERRED_TOKEN_S, INFERRED_TTFT_S = 2e-4, 5e-3
# The 10th and the 90th percentile of a file's durations stand for a fast and a slow answer.
FAST_PERCENT, SLOW_PERCENT = 10, 90
# Whole numbers without a unit may be milliseconds if their 10th percentile is at least ``LEAST_MS``
# and their median is at least ``WHOLE_FROM``.
LEAST_MS, WHOLE_FROM = 20.0, 50.0
_COMMA = re.compile(r"\d{1,3},\d{3}")
NEVER = -1  # VTC-artifact writes this number as the time of an event that did not happen.


class Moments(NamedTuple):
    """Times of requests, as approximate seconds and as exact nanoseconds.

    Unknown times are NaN in seconds and ``NEVER_NS`` in nanoseconds.
    """

    seconds: Floats
    ns: Ints


class Times:
    """A reader for the times in a file of records.

    A Unix time that is too large for seconds is read as ms, us or ns, unless the user gave a unit
    other than seconds. A duration without a unit is in the unit that the start times' column name
    contains (as in ``start_ms``), or in seconds. Raises DataError if an inferred unit implies
    implausible times per output token.
    """

    def __init__(self, columns: FileColumns, unit: str | None, output_tokens: Floats) -> None:
        self._columns, self._asked, self._output = columns, unit, output_tokens
        # ``_stated`` is the time unit in the name of the start-time column, or None.
        self._stated: str | None = None
        # ``_guessed`` is the time unit that the size of the start times suggests, or None.
        self._guessed: str | None = None
        self.said, self.zone = "", "UTC"
        self._comma = _has_decimal_comma(columns)

    def for_rows(self, columns: FileColumns, output_tokens: Floats) -> Times:
        """Restrict the reader to requests in ``columns``; units are inferred from all requests."""
        self._columns, self._output = columns, output_tokens
        return self

    def moments(self, *fields: str, skipped: Flags | None = None) -> Moments:
        """Return each request's time, from the first of the given fields that contains a time."""
        length = len(self._columns)
        found = Moments(np.full(length, np.nan), np.full(length, NEVER_NS))
        for column in self._columns.of_fields(*fields):
            missing = np.isnan(found.seconds)
            rows = missing if skipped is None else missing & ~skipped
            if (part := self._column_part(column, rows)) is not None:
                seconds, ns = self._column_moments(part)
                found = Moments(
                    np.where(missing, seconds, found.seconds), np.where(missing, ns, found.ns)
                )
        return found

    def lengths(self, field: str, skipped: Flags | None = None) -> Floats:
        """Return the durations of a field in seconds; missing values and -1 become NaN."""
        found = np.full(len(self._columns), np.nan)
        for column in self._columns.of_fields(field):
            rows = np.isnan(found) if skipped is None else np.isnan(found) & ~skipped
            if (part := self._column_part(column, rows)) is not None:
                found = np.where(np.isnan(found), self._column_lengths(part), found)
        return found

    def gaps(self, column: ColumnValues, skipped: Sequence[bool]) -> list[Floats]:
        """Return the gaps between the tokens of each request, in seconds."""
        rows: list[Floats] = []
        for row, (values, skip) in enumerate(zip(column.values, skipped, strict=True)):
            if not isinstance(values, list | None):
                wanted = "must be a list of the gaps between the request's tokens"
                raise self._columns.problem(row, f"{column.name} {wanted}")
            found = _numbers_or_none([] if skip else (values or []))
            if found is None or not ((found >= 0) & (found <= MAX_TIME_S)).all():
                raise self._columns.problem(row, f"{column.name} must hold numbers of at least 0")
            rows.append(found)
        scale = UNITS[self._unit_of_length(column, np.concatenate(rows))] / NS if rows else 1.0
        return [row * scale for row in rows]

    def _column_part(self, column: ColumnValues, rows: Flags) -> ColumnValues | None:
        values = column.values
        if isinstance(values, np.ndarray):
            values = values if rows.all() else np.where(rows, values, np.nan)
            return None if np.isnan(values).all() else column._replace(values=values)
        if not rows.all():
            values = [one if row else None for one, row in zip(values, rows.tolist(), strict=True)]
        return None if all(map(cells.is_missing, values)) else column._replace(values=values)

    def _column_moments(self, column: ColumnValues) -> Moments:
        values = column.values
        if not isinstance(values, np.ndarray) and self._comma:
            column = column._replace(values=[cells.with_point(one) for one in values])
            values = column.values
        if not isinstance(values, np.ndarray):
            texts = _calendar(values) if all(type(one) is str for one in values) else None
            if texts is not None:
                self._note_unit(column, "s", guessed=False)
                return texts
            if (array := _numbers_or_none(values)) is None or _are_exact(values, array):
                return self._mixed_moments(column)
            values = array
        unit, guessed = self._unit_of_moments(column, values)
        self._note_unit(column, unit, guessed=guessed)
        return Moments(values * (UNITS[unit] / NS), _in_ns(values, unit))

    def check_dates(self, start: Moments) -> None:
        """Raise DataError if starts are dates without a time of day, or no dates that are known."""
        for column in self._columns.of_fields("start")[:1]:
            if self._guessed is not None:
                check_range(self._columns, *start, "start")
            if self._guessed == "s" and _are_serial(start.seconds[np.isfinite(start.seconds)]):
                raise DataError(
                    f"{self._columns.file}: {shown(column.name, column.first)}: is either a "
                    "spreadsheet's date or a time in seconds; write dates as 2024-05-01T12:00:00Z, "
                    f"or state seconds with --map time_s={column.name}"
                )
            texts = [
                one for one in column.values if isinstance(one, str) and not cells.is_missing(one)
            ]
            if texts and all(
                cells.is_calendar(one) and ":" not in one and len(one.strip()) < 11 for one in texts
            ):
                raise self._columns.problem(
                    0,
                    f"{shown(column.name, column.first)}: must have a time of day, such as "
                    "2024-05-01T12:00:00Z; choose a column of times with --map time=COLUMN",
                )

    def _mixed_moments(self, column: ColumnValues) -> Moments:
        ns = np.full(len(column.values), NEVER_NS)
        numbers = [number_of(one) for one in column.values]
        known = np.array([one for one in numbers if one is not None], np.float64)
        unit, guessed = self._unit_of_moments(column, known) if len(known) else ("s", False)
        self._note_unit(column, unit, guessed=guessed)
        for row, value in enumerate(column.values):
            if cells.is_missing(value):
                continue
            try:
                ns[row] = cells.nanoseconds(value, unit)
            except (ValueError, OverflowError):
                kind = "a number" if numbers[row] is None else f"a number (in {unit})"
                raise self._columns.problem(
                    row,
                    f"{shown(column.name, value)}: must be {kind} or an ISO 8601 time, such as "
                    "2024-05-01T12:00:00Z, in the years 1824 to 2115",
                ) from None
        return Moments(np.where(ns == NEVER_NS, np.nan, ns / NS), ns)

    def _unit_of_moments(self, column: ColumnValues, values: Floats) -> tuple[str, bool]:
        """Return the unit of times, and whether the unit is inferred from the size of times."""
        known = values[np.isfinite(values)]
        size = cells.unit_of(float(known[0])) if len(known) else "s"
        if column.unit is not None:
            return column.unit, False
        if self._asked not in (None, "s"):
            return str(self._asked), False
        layout = self._columns.layout.unit
        dated = layout == "ms" and len(known) and 1e9 <= known[0] < 1e11
        if layout is not None and self._asked is None and not dated:
            return layout, False
        if size == "s" and self._stated is not None and column.field != "start":
            return self._stated, False
        return size, self._asked is None

    def _note_unit(self, column: ColumnValues, unit: str, *, guessed: bool) -> None:
        if column.field != "start" or self.said:
            return
        if isinstance(column.first, list | dict | bool | None):
            return
        self.zone = zone_of(column.first)
        if cells.is_calendar(column.first):
            self.said = "ISO 8601"
            return
        if isinstance(column.first, cells.Nanoseconds):
            self.said = "ns"
            return
        self.said = f"{unit}, by their size" if guessed else unit
        self._guessed = unit if guessed else None
        self._stated = None if guessed else unit

    def _column_lengths(self, column: ColumnValues) -> Floats:
        found, told = column.values, False
        if not isinstance(found, np.ndarray):
            found, told = self._texts_of_lengths(column)
        found = np.where(found == NEVER, np.nan, found)
        if (found < 0).any():
            row = int(np.argmax(found < 0))
            what = "must be at least 0"
            if column.field != "delay":
                what += ", or -1 for a failure"
            raise self._columns.problem(row, f"{shown(column.name, f'{found[row]:g}')}: {what}")
        unit = "s" if told else self._unit_of_length(column, found)
        seconds = unit == "s" and (column.unit or self._asked) and not (told or self._comma)
        if seconds and _may_be_decimals(column.values):
            raise DataError(
                f"{self._columns.file}: {shown(column.name, column.first)}: the comma may separate "
                "thousands or decimals; write 1328 or 1.328 instead of 1,328"
            )
        return found * (UNITS[unit] / NS)

    def _texts_of_lengths(self, column: ColumnValues) -> tuple[Floats, bool]:
        """Return the durations, and whether their texts contain units, as in ``350ms``."""
        parts = [cells.duration_s(one) for one in column.values]
        if any(one is not None for one in parts):
            for row, (value, part) in enumerate(zip(column.values, parts, strict=True)):
                if part is None and not cells.is_missing(value) and number_of(value) != 0:
                    raise self._columns.problem(
                        row, f"{shown(column.name, value)}: must have a unit, such as 1.5s or 350ms"
                    )
            return np.array([np.nan if one is None else one for one in parts]), True
        texts = [cells.with_point(one) for one in column.values] if self._comma else column.values
        whole = any(isinstance(one, str) and one.isdigit() for one in texts)
        if (
            whole
            and self._columns.semicolons
            and (column.unit or self._asked or self._stated) == "ms"
        ):
            texts = cells.without_points(list(texts))
        return numbers(self._columns, column._replace(values=texts)), False

    def _unit_of_length(self, column: ColumnValues, found: Floats) -> str:
        if column.unit is not None:
            return column.unit
        if column.field == "delay":
            return "ms"
        known = found[np.isfinite(found)]
        if self._asked is not None or not len(known):
            return self._asked or "s"
        if self._columns.layout.unit is not None:
            return self._columns.layout.unit
        if self._guessed not in (None, "s"):
            raise self._unknown_unit(
                column, f"s or {self._guessed} like its dates", str(self._guessed)
            )
        return self._stated or "s"

    def check_lengths(self, lengths: Floats, before_s: Floats, field: str) -> None:
        """Raise DataError if a guessed unit implies implausible times per output token.

        Args:
            lengths: The durations of the requests in seconds, shape (n_requests,).
            before_s: The time to the first token in seconds, or NaN if unknown.
            field: The name of the checked field, ``latency`` or ``ttft``.
        """
        known = self._asked or self._columns.layout.unit
        for column in self._columns.of_fields(field):
            if not (column.unit or known or cells.duration_s(column.first) is not None):
                with np.errstate(over="ignore"):
                    self._check_guessed_unit(column, lengths, before_s)

    def _check_guessed_unit(self, column: ColumnValues, lengths: Floats, before_s: Floats) -> None:
        unit = self._stated or "s"
        if column.field == "ttft":
            waits = lengths[np.isfinite(lengths)]
            slow = float(np.percentile(waits, SLOW_PERCENT)) if len(waits) else 0.0
            if unit != "s" and 0 < slow < INFERRED_TTFT_S:
                raise self._unknown_unit(
                    column,
                    f"in {unit}, even slow first tokens would take only {slow * 1e3:.3g} ms",
                    said=True,
                )
            both = np.isfinite(lengths) & np.isfinite(before_s)
            if both.any() and (lengths[both] > before_s[both]).mean() > 0.5:
                raise self._unknown_unit(column, f"in {unit}, it would exceed the latency")
            return
        decoded_s = lengths - np.nan_to_num(before_s)
        known = np.isfinite(decoded_s) & (self._output > 0)
        if not known.any():
            return
        steps = np.maximum(self._output[known] - 1, 1)
        several = self._output[known] > 1
        token_s = decoded_s[known] / steps
        slow_s = float(np.percentile(token_s[several], FAST_PERCENT)) if several.any() else 0.0
        answer_s = float(np.percentile(decoded_s[known], FAST_PERCENT))
        fast_s = float(np.percentile(lengths[known] / self._output[known], SLOW_PERCENT))
        named = {"s": "seconds"}.get(unit, unit)
        least_s = FASTEST_TOKEN_S if unit == "s" else INFERRED_TOKEN_S
        if slow_s > SLOWEST_TOKEN_S or (not several.any() and answer_s > SLOWEST_ANSWER_S):
            each_s = slow_s or answer_s
            smaller = each_s / UNITS[unit] * np.array([UNITS["ms"], UNITS["us"]])
            other = ("ms", "us", "ns")[int((smaller > SLOWEST_TOKEN_S).sum())]
            raise self._unknown_unit(
                column,
                f"in {named}, even fast answers would take {each_s:.3g} s per token, so the unit "
                f"is probably {other}",
                other,
                said=True,
            )
        if 0 < fast_s < least_s:
            raise self._unknown_unit(
                column,
                f"in {named}, even slow answers would take {fast_s * 1e6:.3g} us per token",
                said=True,
            )
        raw = lengths[np.isfinite(lengths)] * (NS / UNITS[unit])
        least, middle = np.percentile(raw, (FAST_PERCENT, 50)).tolist()
        if unit == "s" and (raw % 1 == 0).all() and least >= LEAST_MS and middle >= WHOLE_FROM:
            raise self._unknown_unit(column, "s or ms")

    def _unknown_unit(
        self, column: ColumnValues, why: str, other: str = "ms", *, said: bool = False
    ) -> DataError:
        """Return the error that a column's unit is unknown, with the flags that set a unit."""
        field, name = column.field, column.name
        field = "itls" if field == "gaps" else field
        other = "ms" if other == "s" else other
        what = why if said else f"the unit is unknown, {why}"
        return RecordUnit(
            f"{self._columns.file}: {shown(name, column.first)}: {what}; give it with "
            f"--map {field}_{other}={name} or --map {field}_s={name}, or with --time-unit"
        )


class RecordUnit(DataError):
    """An error for durations whose unit cannot be inferred."""


def _in_ns(values: Floats, unit: str) -> Ints:
    """Return times in nanoseconds; whole numbers are converted without rounding."""
    factor = UNITS[unit]
    known = np.isfinite(values) & (np.abs(values) < LARGEST_NS / factor)
    safe = np.where(known, values, 0.0)
    whole = safe.astype(np.int64)
    exact = np.where(safe == whole, whole * factor, np.rint(safe * factor).astype(np.int64))
    return np.where(known, exact, NEVER_NS)


def _are_exact(values: Sequence[Any], found: Floats) -> bool:
    """Return whether times are integers that are too large to be exact as floats."""
    if any(isinstance(one, cells.Nanoseconds) for one in values):
        return True
    large = np.flatnonzero(np.abs(found) > 2**53).tolist()
    return bool(large) and all(isinstance(number_of(values[row]), int) for row in large)


def _calendar(values: Sequence[str]) -> Moments | None:
    """Convert ISO 8601 texts of equal form to UTC times; return None if their forms differ."""
    first = values[0]
    end = first[-6:] if first[-6:-5] in ("+", "-") and first[-3:-2] == ":" else "Z"
    end = end if first.endswith(end) else ""
    if not all(one.endswith(end) and len(one) < 40 for one in values):
        return None
    try:
        offset = datetime.fromisoformat(f"2000-01-01T00:00{end}").utcoffset()
    except ValueError:
        return None
    texts = np.array([one[: len(one) - len(end)] for one in values], "U40")
    marks = texts.view("U1").reshape(len(values), 40)
    rest = marks[:, 20:]
    if not (np.isin(marks[:, 19], ["", "."]).all() and np.isin(rest, ["", *DIGITS]).all()):
        return None
    digits = np.isin(marks[:, [0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]], DIGITS)
    dashes = (marks[:, [4, 7]] == "-").all() and (marks[:, [13, 16]] == ":").all()
    if not (digits.all() and dashes and np.isin(marks[:, 10], ["T", " "]).all()):
        return None
    try:
        us = texts.astype("U26").astype("datetime64[us]").astype(np.int64)
    except ValueError:
        return None
    us -= 0 if offset is None else offset // timedelta(microseconds=1)
    if (np.abs(us) >= LARGEST_NS // 1000).any():
        return None
    return Moments(us * 1000 / NS, us * 1000)


def _numbers_or_none(values: Sequence[Any]) -> Floats | None:
    found = []
    try:
        for value in values:
            number = number_of(value)
            if number is None and not cells.is_missing(value):
                return None
            found.append(np.nan if number is None else float(number))
    except OverflowError:
        return None
    return np.array(found, dtype=np.float64)


def numbers(columns: FileColumns, column: ColumnValues) -> Floats:
    """Return the numbers in a column, with NaN for missing values.

    Raises DataError with the row of a value that is not a number.
    """
    if isinstance(column.values, np.ndarray):
        return column.values
    if (found := _numbers_or_none(column.values)) is not None:
        return found
    for row, value in enumerate(column.values):
        if cells.is_missing(value) or (_numbers_or_none([value]) is not None):
            continue
        raise columns.problem(row, f"{shown(column.name, value)}: must be a number")
    raise AssertionError(column.name)


def _has_decimal_comma(columns: FileColumns) -> bool:
    """Return whether a comma in the file's times is the decimal separator.

    A comma before three digits is read as decimal only if semicolons separate the columns, or if
    another comma in the file cannot separate thousands.
    """
    timed = columns.of_fields(*LENGTHS, *MOMENTS)
    texts = [
        one.strip()
        for column in timed
        if not isinstance(column.values, np.ndarray)
        for one in column.values
        if isinstance(one, str) and "," in one
    ]
    found = [one for one in texts if cells.with_point(one) != one]
    return any(not cells.is_thousands(one) for one in found) or (bool(found) and columns.semicolons)


def _are_serial(start: Floats) -> bool:
    """Return whether fractional times within a month may be days, as spreadsheets count them."""
    first, last = (start.min(), start.max()) if len(start) else (0.0, 0.0)
    near = SERIAL_DAYS[0] <= first < last < min(SERIAL_DAYS[1], first + 31)
    return bool(near and (start % 1 != 0).any())


def _may_be_decimals(values: Sequence[Any] | Floats) -> bool:
    """Return whether a comma stands before the last three digits of every duration."""
    known = [] if isinstance(values, np.ndarray) else [v for v in values if not cells.is_missing(v)]
    return bool(known) and all(isinstance(v, str) and _COMMA.fullmatch(v.strip()) for v in known)


def check_range(columns: FileColumns, seconds: Floats, ns: Ints, field: str) -> None:
    """Raise DataError for a time that does not fit into 64 bits in ns."""
    wrong = ~np.isnan(seconds) & (ns == NEVER_NS)
    if wrong.any():
        row, column = int(np.argmax(wrong)), columns.of_fields(field)[0]
        raise columns.problem(
            row,
            f"{shown(column.name, column.values[row])}: must be a number (in s) or an ISO 8601 "
            "time, such as 2024-05-01T12:00:00Z, in the years 1824 to 2115",
        )


def check_one_clock(columns: FileColumns, start: Floats, column: ColumnValues) -> None:
    """Raise DataError if start times mix dates with numbers, or mix several units."""
    known = np.flatnonzero(np.isfinite(start))
    if not len(known):
        return
    wrong = of_other_clock(start, np.full(len(start), start[known[0]]))
    if wrong.any():
        row = int(np.argmax(wrong))
        dated = abs(start[row]) >= DATED_S and abs(start[row]) > abs(start[known[0]])
        kinds = ("dates", "seconds") if dated else ("seconds", "dates")
        kind = "is a date, unlike the times" if dated else "is not a date, unlike the times"
        raise columns.problem(
            row,
            f"{shown(column.name, column.values[row])}: {kind} before it, or is in another unit: "
            f"times must be all {kinds[1]} or all {kinds[0]}",
        )


def check_zones(columns: FileColumns, column: ColumnValues, times: Floats, start: Floats) -> None:
    """Raise DataError if only one of two times states a UTC offset, and the offsets must differ.

    Offsets differ by at least 15 minutes, so a request that takes less proves equal offsets.
    """
    sides = (*columns.of_fields("start")[:1], column)
    firsts = (one.first for one in sides)
    zones = {zone_of(one) for one in firsts if isinstance(one, str) or is_number(one)}
    apart_s = np.abs(times - start)
    if len(zones) < 2 or "" not in zones or not np.isfinite(apart_s).any():
        return
    row = int(np.nanargmin(apart_s))
    if not ZONE_S <= apart_s[row] <= MOST_ZONE_S:
        return
    values = (shown(one.name, listed(one.values)[row]) for one in sides)
    raise columns.problem(
        row,
        f"{' and '.join(values)} are {apart_s[row]:,.0f} s apart, and only one of them states a "
        "UTC offset: write both with an offset, such as 2024-05-01T12:00:00+02:00",
    )


def of_other_clock(times: Floats, others: Floats) -> Flags:
    """Return a mask of rows where ``times`` and ``others`` must have different clocks or units."""
    least, most = np.minimum(abs(times), abs(others)), np.maximum(abs(times), abs(others))
    apart: Flags = (most >= DATED_S) & (most >= APART * least) & np.isfinite(most)
    return apart
