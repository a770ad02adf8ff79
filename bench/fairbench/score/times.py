"""Times of external records in seconds, from numbers in a unit or from ISO 8601."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fairbench.errors import DataError, shortened
from fairbench.files.times import UNITS, is_missing, nanoseconds, number_of, unit_of
from fairbench.metrics.records import Flags, Floats
from fairbench.results.run_tables import MAX_TIME_S
from fairbench.score.columns import Column

MOMENTS = ("start", "first_token", "end", "admitted")
"""Fields that are times on a clock, not lengths of time."""

DATED_S = 1e8  # larger times (from March 1973 on) are dates, because no run is so long

APART = 100  # times on one clock differ by less than this factor, if some are dates

SLOWEST_TOKEN_S = 2.0
"""No server always takes longer per token: longer times are in another unit than seconds."""

FAST_PERCENT = 10  # fraction of the answers that are fast

NEVER = -1  # a duration that VTC-artifact writes for missing events, in any unit


class Times:
    """A reader of the times of one file, in seconds.

    Unix times too large for seconds are read in ms, us or ns by their size, unless the user sets
    another unit than seconds. Beside such dates, a length of time without a unit may be in seconds
    or in their unit: ``unit_s`` None means unknown.
    """

    def __init__(self, where: str, unit_s: float | None) -> None:
        self._where = where
        self._said, self._unit_s = unit_s is not None, 1.0 if unit_s is None else unit_s
        self._guessed = "s"  # the unit of the file's dates, if only their size shows it

    def of(self, column: Column) -> Floats:
        """Return the times; NaN for none. Raises DataError naming the request."""
        values = column.values
        if column.field in MOMENTS and not all(map(_is_number, values)):
            return np.array([self._read(column, row, one) for row, one in enumerate(values)])
        found = numbers(values, column.field, self._where)
        return found * self._scale(column, found)

    def lengths(self, column: Column) -> Floats:
        """Return durations; NaN if missing or -1.

        Raises DataError naming the request for any other negative length.
        """
        found = numbers(column.values, column.field, self._where)
        found[found == NEVER] = np.nan
        if (found < 0).any():
            row = int(np.argmax(found < 0))
            value = f"{column.field} = {found[row]:g}: must be at least 0, or -1 for a failure"
            raise problem(self._where, row, value)
        return found * self._scale(column, found)

    def gaps(self, column: Column) -> list[Floats]:
        """Return all gaps between the tokens of each request. Raises the errors of ``of``."""
        for row, values in enumerate(column.values):
            if not isinstance(values, list | None):
                raise problem(self._where, row, f"{column.field} must be a list of numbers")
        rows = [numbers(values or [], column.field, self._where) for values in column.values]
        for row, gaps in enumerate(rows):
            if not ((gaps >= 0) & (gaps <= MAX_TIME_S)).all():
                raise problem(self._where, row, f"{column.field} must hold numbers of at least 0")
        scale = self._scale(column, np.concatenate(rows) if rows else np.array([]))
        return [row * scale for row in rows]

    def _scale(self, column: Column, found: Floats) -> float:
        """Return the seconds of a unit of the column."""
        if column.unit is not None:
            return UNITS[column.unit] / UNITS["s"]
        known = found[np.isfinite(found)]
        if self._unit_s == 1.0 and column.field in MOMENTS and len(known):
            self._guessed = unit_of(float(known[0]))
            return UNITS[self._guessed] / UNITS["s"]
        if not self._said and self._guessed != "s" and len(known):
            name = column.field
            raise RecordError(
                f"{self._where}: {name} = {known[0]:g}: the unit is unknown, s or "
                f"{self._guessed} like its dates; give it in the name of the column, such as "
                f"{name}_s or {name}_{self._guessed}, or with --time-unit of `score`"
            )
        return self._unit_s

    def _read(self, column: Column, row: int, value: Any) -> float:
        if is_missing(value):
            return np.nan
        try:
            return nanoseconds(value, column.unit or unit_of(value)) / UNITS["s"]
        except (ValueError, OverflowError):
            said = (
                f"{column.field} = {shortened(repr(value))}: must be a number, or an ISO 8601 time"
            )
            raise problem(self._where, row, said) from None


def check_decoding(length: Column, decoded_s: Floats, tokens: Floats, where: str) -> None:
    """Raise RecordError if answers take so long per token that their unit must be another one.

    Args:
        length: A column of lengths of time without a unit.
        decoded_s: Time from each request's first token to its last one, seconds.
        tokens: Number of output tokens of each request.
        where: Name of the file in messages.
    """
    known = np.isfinite(decoded_s) & (tokens > 1)
    if not known.any():
        return
    token_s = float(np.percentile(decoded_s[known] / (tokens[known] - 1), FAST_PERCENT))
    if token_s > SLOWEST_TOKEN_S:
        value = number_of(next(one for one in length.values if not is_missing(one)))
        raise RecordError(
            f"{where}: {length.name} = {value:g}: in seconds, even fast answers would take "
            f"{token_s:.3g} s per token, so the unit is probably ms; give it in the name of "
            f"the column, such as {length.name}_ms or {length.name}_s, or with --time-unit of "
            "`score`"
        )


def check_one_clock(start: Floats, shown: Sequence[Any], where: str) -> None:
    """Raise DataError if start times mix dates and other numbers, or units.

    ``shown`` are the times as in the file.
    """
    known = np.flatnonzero(np.isfinite(start))
    if not len(known):
        return
    wrong = _of_other_clock(start, np.full(len(start), start[known[0]]))
    if wrong.any():
        row = int(np.argmax(wrong))
        dated = abs(start[row]) >= DATED_S and abs(start[row]) > abs(start[known[0]])
        kinds = "is a date, unlike the times" if dated else "is no date, unlike those"
        value = shortened(repr(shown[row]))
        raise problem(where, row, f"start = {value}: {kinds} before it, or is in another unit")


def check_moments(column: Column, moments: Floats, start: Floats, where: str) -> None:
    """Raise DataError for times that do not fit the clock of the request's start.

    This detects a column of durations that was read as times.
    """
    way = {"end": "latency", "first_token": "ttft"}.get(column.field)
    wrong = (_of_other_clock(moments, start) & (moments <= MAX_TIME_S)) | (moments < start)
    if way is None or not wrong.any():
        return
    row = int(np.argmax(wrong))
    what = {"end": "its end", "first_token": "its first token"}[column.field]
    said = f"{what} is before its start" if moments[row] < start[row] else f"{what} is by no clock"
    hint = f"if {column.name} is a length of time, --map {way}={column.name}"
    value = shortened(repr(column.values[row]))
    raise problem(where, row, f"{said} ({column.field} = {value}): {hint}")


def _of_other_clock(times: Floats, others: Floats) -> Flags:
    """Return which times are on another clock or in another unit than the others."""
    least, most = np.minimum(abs(times), abs(others)), np.maximum(abs(times), abs(others))
    apart: Flags = (most >= DATED_S) & (most >= APART * least) & np.isfinite(most)
    return apart


def numbers(values: Iterable[Any], field: str, where: str) -> Floats:
    """Return numbers, also from texts; NaN for none. Raises DataError naming the request."""
    found = []
    for row, value in enumerate(values):
        try:
            number = number_of(value)
            if number is None and not is_missing(value):
                raise ValueError
            found.append(np.nan if number is None else float(number))
        except (ValueError, OverflowError):
            said = f"{field} = {shortened(repr(value))}: must be a number"
            raise problem(where, row, said) from None
    return np.array(found, dtype=np.float64)


class RecordError(DataError):
    """A record with an impossible value, in a file whose columns are known."""


def problem(where: str, row: int, what: str) -> RecordError:
    """Return the error message about a request; the first is row 0."""
    return RecordError(f"{where}: request {row + 1}: {what}")


def without(column: Column, rows: Sequence[bool]) -> Column:
    """Return the column without the values of these rows."""
    values = [None if skip else one for one, skip in zip(column.values, rows, strict=True)]
    return column._replace(values=values)


def _is_number(value: Any) -> bool:
    return not isinstance(value, str) or is_missing(value) or number_of(value) is not None
