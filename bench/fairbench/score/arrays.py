"""Columns of external records as checked arrays of numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbench.files.times import is_blank, is_missing, number_of
from fairbench.metrics.records import FINISHED, REFUSED, Flags, Floats
from fairbench.results.run_tables import MAX_COUNT, MAX_TIME_S, MAX_WORKER
from fairbench.score.columns import Columns
from fairbench.score.layout import FIRST, LAST, PLAIN
from fairbench.score.states import FAILED, UNSAID, is_error, states_of
from fairbench.score.times import (
    Times,
    check_decoding,
    check_moments,
    check_one_clock,
    numbers,
    problem,
    without,
)

TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
COUNTS = {**dict.fromkeys(TOKENS, (0, MAX_COUNT)), "worker": (-1, MAX_WORKER)}
"""Fields that are whole numbers, with their lowest and highest possible values."""

OVERCACHED = "had more cached than input tokens, all of which count as cached"
UNCOUNTED = "failed without a count of input tokens, which counts as 0"
SILENT = "ended without a single output token, which counts as failed"
REPEATED = "has an id that an earlier one has too, and counts like any other"
Mended = Counter[str]
"""The number of changed requests, by reason."""


def arrays_of(
    columns: Columns, where: str, unit_s: float | None, *, client: str, part: int, mended: Mended
) -> dict[str, Any]:
    """Return the columns of one file as arrays, with absolute times in seconds.

    Raises DataError naming ``where``, the request and the field.

    Args:
        columns: The columns of the file.
        where: The file's name in error messages.
        unit_s: Seconds of a unit of times, None if unknown.
        client: The client of all requests if the file names none.
        part: The number of the file, which distinguishes the programs of several files.
        mended: Counts of the requests that were changed, by reason.
    """
    length = len(columns)
    made: dict[str, Any] = {}
    for field in TOKENS:
        values = columns.values(field)
        made[field] = np.full(length, np.nan) if values is None else numbers(values, field, where)
    states = states_of(columns.values("status") or [None] * length, where)
    broken = np.array([is_error(one) for one in columns.values("error") or [None] * length])
    ended_badly = (states == FAILED) | (states == REFUSED)
    nothing = broken | (ended_badly & ~(made["output_tokens"] > 0))

    times = Times(where, unit_s)
    start = _first_given([times.of(one) for one in columns.times(("start",))], length)
    check_one_clock(start, columns.columns["start"].values, where)
    first, last, gaps = _ends(columns, start, times, nothing, where)
    if unit_s is None and columns.layout.name == PLAIN:
        for column in columns.times(("latency",)):
            if column.unit is None:
                check_decoding(column, last - first, made["output_tokens"], where)
    last = np.where(ended_badly, np.nan, last)
    silent = _silent(states, last, made["output_tokens"], gaps)
    first, last = np.where(silent, np.nan, first), np.where(silent, np.nan, last)
    states = np.where(broken | silent, FAILED, states)
    mended[SILENT] += int(silent.sum())

    admitted = [times.of(one) for one in columns.times(("admitted",))]
    named = columns.values("client") or [client] * length
    for row, name in enumerate(named):
        if is_blank(name):
            raise problem(where, row, "client is missing")
    names = np.array([str(name) for name in named], object)
    made |= {
        "client": names,
        "program": _programs(columns, names, part),
        "start": start,
        "first": first,
        "last": last,
        "admitted": _first_given(admitted, length),
        "gaps": gaps,
        "worker": _workers(columns.values("worker") or [None] * length, where),
        **_status(states, last, refuses=columns.layout.refuses),
    }
    _mend(made, mended)
    ids = [str(one) for one in columns.values("id") or () if not is_missing(one)]
    mended[REPEATED] += len(ids) - len(set(ids))
    _check(made, where)
    return made


def _first_given(found: list[Floats], length: int) -> Floats:
    """Return the first known time of each request; NaN if there is none."""
    result = np.full(length, np.nan)
    for one in found:
        result = np.where(np.isnan(result), one, result)
    return result


def _ends(
    columns: Columns, start: Floats, times: Times, nothing: Flags, where: str
) -> tuple[Floats, Floats, Any]:
    """Return when first and last token arrived, and the gaps between tokens if known.

    ``nothing`` marks failed requests whose times have no meaning.
    """
    length, skipped = len(start), nothing.tolist()
    firsts: list[Floats] = []
    for column in columns.times(FIRST):
        column = without(column, skipped)
        if column.field == "ttft":
            firsts.append(start + times.lengths(column))
        else:
            firsts.append(times.of(column))
            check_moments(column, firsts[-1], start, where)
    first = _first_given(firsts, length)
    lasts: list[Floats] = []
    gaps = None
    for column in columns.times(LAST):
        column = without(column, skipped)
        if column.field == "itls":
            gaps = times.gaps(column)
        elif column.field == "latency":
            lasts.append(start + times.lengths(column))
        else:
            lasts.append(times.of(column))
            check_moments(column, lasts[-1], start, where)
    if gaps is not None:
        streamed = np.array([len(one) > 0 for one in gaps])
        if lasts:  # an answer in one piece may have no first token, or one after 0 s
            whole = ~streamed & ~(first > start) & ~np.isnan(lasts[0])
            first = np.where(whole, lasts[0], first)
        summed = first + np.array([one.sum() for one in gaps])
        lasts = [np.where(streamed, summed, np.nan), *lasts, summed]
    if gaps is None and "gaps" in columns.columns:
        gaps = times.gaps(without(columns.columns["gaps"], skipped))
    made = np.empty(length, object)
    for row, one in enumerate(gaps or ()):
        made[row] = one
    return first, _first_given(lasts, length), made


def _silent(states: Any, last: Floats, output: Floats, gaps: Any) -> Flags:
    """Return which requests have an end but neither tokens nor a success status."""
    no_gaps = np.array([one is None or not len(one) for one in gaps])
    silent: Flags = (states == UNSAID) & ~np.isnan(last) & (output == 0) & no_gaps
    return silent


def _status(states: Any, last: Floats, *, refuses: bool) -> dict[str, Any]:
    """Return the state of each request in the tables' terms, and which requests failed.

    By default, ended requests have finished, and others have failed or were refused.
    """
    unsaid, ended = states == UNSAID, ~np.isnan(last)
    unended = REFUSED if refuses else FAILED
    states = np.where(unsaid, np.where(ended, FINISHED, unended), states)
    return {"status": np.where(states == FAILED, REFUSED, states), "failed": states == FAILED}


def _programs(columns: Columns, clients: Any, part: int) -> Any:
    """Return the program of each request; a request without one is its own program."""
    given = columns.values("program") or [None] * len(clients)
    owners = clients if columns.layout.sessions else [""] * len(clients)
    names = [
        f"{part}/row {row}"
        if (is_missing(name) or name in ([], {}))
        else f"{part}/{owner}/id {name}"
        for row, (name, owner) in enumerate(zip(given, owners, strict=True))
    ]
    return np.array(names, object)


def _workers(values: list[Any], where: str) -> Any:
    """Return numbers of workers, NaN for none, or names if some are not numbers."""
    if all(is_missing(one) or number_of(one) is not None for one in values):
        return numbers(values, "worker", where)
    if any(isinstance(one, list | dict | bool) for one in values):
        return numbers(values, "worker", where)  # raises the error
    return np.array([np.nan if is_missing(one) else str(one) for one in values], object)


def _mend(made: dict[str, Any], mended: Mended) -> None:
    """Correct oddities of single requests that do not change the measurements."""
    over = made["cached_tokens"] > made["input_tokens"]
    made["cached_tokens"] = np.where(over, made["input_tokens"], made["cached_tokens"])
    mended[OVERCACHED] += int(over.sum())
    uncounted = np.isnan(made["input_tokens"]) & (made["status"] == REFUSED)
    made["input_tokens"] = np.where(uncounted, 0.0, made["input_tokens"])
    mended[UNCOUNTED] += int(uncounted.sum())


def _check(made: Mapping[str, Any], where: str) -> None:
    for what, rows in _impossible(made).items():
        if rows.any():
            row = int(np.argmax(rows))
            field, _, demand = what.partition(" must ")
            value = f"{field} = {made[field][row]:.17g}: must {demand}" if demand else what
            raise problem(where, row, value)


def _impossible(made: Mapping[str, Any]) -> dict[str, Flags]:
    start, first, last = made["start"], made["first"], made["last"]
    ended = ~np.isnan(last)
    return {
        "start is missing": np.isnan(start),
        "a time is infinite": np.isinf(start) | np.isinf(first) | np.isinf(last),
        "a time is beyond 10^12 s": np.any(np.abs([start, first, last]) > MAX_TIME_S, axis=0),
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
            if made[field].dtype != object
        },
    }


def _no_count(values: Floats, least: int, most: int) -> Flags:
    """Return which known values are not whole numbers from ``least`` to ``most``."""
    with np.errstate(invalid="ignore"):  # infinity is not a whole number either
        fractions: Flags = values % 1 != 0
    return ~np.isnan(values) & (fractions | (values < least) | (values > most))
