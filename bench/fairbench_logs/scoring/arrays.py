"""Conversion of other tools' records into checked arrays, one per field."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbench.errors import DataError, printable
from fairbench.files.times import MAX_TIME_S, number_of
from fairbench.metrics.records import FINISHED, REFUSED, Flags, Floats
from fairbench.results.run_facts import MAX_COUNT, MAX_WORKER
from fairbench_logs.records.cells import is_missing
from fairbench_logs.records.column_names import FIRST, LAST, OWN, first_columns, nearest
from fairbench_logs.records.known_formats import PLAIN
from fairbench_logs.records.log_reader import ColumnValues, FileColumns, listed, shown
from fairbench_logs.records.requests import FileRequests
from fairbench_logs.records.times import check_zones, numbers, of_other_clock
from fairbench_logs.scoring.states import (
    FAILED,
    UNSAID,
    errors_of,
    signed,
    states_of,
    with_failures,
)

TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
COUNTS = {**dict.fromkeys(TOKENS, (0, MAX_COUNT)), "worker": (-1, MAX_WORKER)}
"""The fields of records that are whole numbers, with the lowest and highest allowed values."""
FIELDS = (
    *("client", "start", *FIRST, *LAST, *TOKENS, "written_tokens", "session"),
    *("reasoning_tokens", "total_tokens"),
    *("worker", "admitted", "status", "error", "gaps", "request_id"),
    *("span_kind", "span_id", "parent_id"),
)
"""The fields of records from which a score is computed."""
NEEDED = ("client", "start", "input_tokens", "output_tokens", *FIRST, *LAST)
"""The fields that every file of records must have."""

OVERCACHED = "had more cached than input tokens, so all input tokens count as cached"
UNCOUNTED = "failed without a count of input tokens, which counts as 0"
SILENT = "ended without any output token, and counts as failed"
UNKNOWN_OUTPUT = "ended without a count of output tokens, which counts as 0"
ONE_PIECE = "ended without a time of the first token, and counts as answered in one piece"
NAMELESS = "names no client, and counts as one of the client 'all'"
REPEATED = "has the id of an earlier request, and counts as a separate request"
TWICE = "repeats the id of a request, and counts as a part of this request"
Mended = Counter[str]
"""The number of corrected requests, by the text that describes the correction."""


def arrays_of(
    requests: FileRequests, *, client: str, part: int, mended: Mended, per_client: bool
) -> dict[str, Any]:
    """Return the columns of a file as arrays, with absolute times in seconds.

    Raises DataError, which names the request and the field, for impossible values.

    Args:
        requests: The requests that were read from the file.
        client: Name of the client to which all requests belong if the file names no clients.
        part: The number of the file, so that programs of different files stay distinct.
        mended: The counter of corrected requests, which the function increases.
        per_client: Whether sessions of different clients with equal numbers are separate programs.
    """
    columns, length = requests.columns, len(requests)
    made: dict[str, Any] = {field: getattr(requests, field) for field in TOKENS}
    if columns.layout.uncached:
        made["cached_tokens"] = np.zeros(length)
    states, broken = _states(columns, mended)
    ended_badly = (states == FAILED) | (states == REFUSED)
    nothing = broken | (ended_badly & ~(made["output_tokens"] > 0))

    start = requests.start.seconds
    first, last, gaps = _ends_of(requests, nothing)
    last = np.where(ended_badly, np.nan, last)
    no_gaps = np.array([one is None or not len(one) for one in gaps])
    silent = (states == UNSAID) & ~np.isnan(last) & (made["output_tokens"] == 0) & no_gaps
    first, last = np.where(silent, np.nan, first), np.where(silent, np.nan, last)
    states = np.where(broken | silent, FAILED, states)
    mended[SILENT] += int(silent.sum())
    uncounted = ~np.isnan(last) & np.isnan(made["output_tokens"])
    mended[UNKNOWN_OUTPUT] += int(uncounted.sum())
    made["output_tokens"] = np.where(uncounted, 0.0, made["output_tokens"])
    tokenless = ~np.isnan(last) & ~(made["output_tokens"] > 0)
    first = np.where(tokenless & np.isnan(first), last, first)
    # A log may contain both streamed and non-streamed answers.
    if np.isfinite(first).any():
        whole = np.isnan(first) & ~np.isnan(last)
        first = np.where(whole, last, first)
        mended[ONE_PIECE] += int(whole.sum())

    _check_ends(requests, states)
    names = np.array(_clients(requests, client, mended), object)
    made |= {
        "client": names,
        "program": _programs(requests, names, part, per_client=per_client),
        "start": start,
        "first": first,
        "last": last,
        "admitted": requests.times.moments("admitted").seconds,
        "gaps": gaps,
        "name": np.array(requests.labels("request_id"), object),
        "worker": _workers(columns),
        **_status(states, last, refuses=columns.layout.refuses),
    }
    _mend(made, mended)
    ids = [str(one) for one in columns.field_values("request_id") or () if not is_missing(one)]
    mended[REPEATED] += len(ids) - len(set(ids))
    mended[TWICE] += requests.repeated
    _check_values(made, columns)
    return made


def _missing(columns: FileColumns, *, counted: bool = True) -> dict[str, tuple[str, ...]]:
    """Return the fields that a score needs but the file lacks, each with accepted alternatives.

    If ``counted`` is True, token counts are among the needed fields.
    """
    known = {
        name
        for name, found in columns.fields.items()
        if any(
            one.first is not None
            or (one.name not in columns.unseen and not one.name.startswith(OWN))
            for one in found
        )
    }
    groups = {" or ".join(FIRST): FIRST, " or ".join(LAST[:2]): LAST}
    needed = {name: (name,) for name in ("start", "input_tokens", "output_tokens")} | groups
    if columns.layout.name == PLAIN.name:
        needed = {"client": ("client",)} | needed
    if columns.layout.at_once:
        del needed["start"]
    if not counted:
        del needed["input_tokens"], needed["output_tokens"]
    return {name: ways for name, ways in needed.items() if known.isdisjoint(ways)}


def has_waits(columns: FileColumns, *, counted: bool = True) -> bool:
    """Return whether a file's first-token times show how long requests waited.

    A request without a recorded end counts as ended at its first token. If ``counted`` is True, the
    token counts must be known in addition to the waits.
    """
    known = [name for name in FIRST if any(c.first is not None for c in columns.of_fields(name))]
    return bool(known) and not _missing(columns, counted=counted).keys() - {" or ".join(LAST[:2])}


def check_needed(columns: FileColumns, *, clients: bool = True) -> None:
    """Raise DataError if the file lacks a column that every score needs.

    The names of clients are needed only if ``clients`` is True.
    """
    missing = _missing(columns)
    if not clients:
        missing.pop("client", None)
    if not missing:
        return
    fields = [one for ways in missing.values() for one in ways]
    fields = [one for one in fields if not columns.is_named(one)]
    found = ((one, nearest(one, columns.samples, columns.taken)) for one in fields)
    near = next((f"{field}={name}" for field, name in found if name), "")
    hint = f" Did you mean {near}?" if near else ""
    named = (columns.chosen_name(name) or name for name in missing)
    plain = "is unknown. The plain layout" if columns.layout is PLAIN else f"{columns.layout.name}"
    raise DataError(
        f"{columns.first_where}: the layout {plain} needs {', '.join(named)}, which the file "
        f"lacks (it has {first_columns(columns.record)}). Name the fields with "
        f"--map FIELD=NAME.{hint}"
    )


def _states(columns: FileColumns, mended: Mended) -> tuple[Any, Flags]:
    """Return each request's state, and a mask of the records that report an error."""
    said = columns.field_values("status")
    said = None if said is None else with_failures(said)
    signs = signed(columns.signs)
    if signs is not None:
        said = (
            signs
            if said is None
            else [b if is_missing(a) else a for a, b in zip(said, signs, strict=True)]
        )
    unknown = Counter[str]()
    states = states_of(said or [None] * len(columns), columns, unknown)
    for word, count in unknown.most_common(3):
        mended[
            f"has the unknown status {printable(word)!r}, and is judged by the other fields"
        ] += count
    errors = columns.field_values("error")
    return states, np.zeros(len(columns), np.bool_) if errors is None else errors_of(errors)


def _clients(requests: FileRequests, client: str, mended: Mended) -> list[str]:
    if "client" not in requests.columns.fields:
        return [client] * len(requests)
    names = requests.labels("client")
    mended[NAMELESS] += names.count("")
    return [name or NO_CLIENT for name in names]


NO_CLIENT = "all"
"""The client of a request without a client name, if the file names other clients."""


def _check_ends(requests: FileRequests, states: Any) -> None:
    """Raise DataError if a request seems successful but has no field for its end time.

    A request seems successful if its record has output tokens and reports no failure. A record with
    an empty end time raises no error.
    """
    columns = requests.columns
    for row, keys in columns.odd.items():
        if columns.layout is not PLAIN or not requests.output_tokens[row] > 0:
            continue
        if states[row] == UNSAID:
            ends = [column.name for column in columns.of_fields(*LAST)]
            others = ", ".join(printable(str(key)) for key in keys if key not in columns.taken)
            raise columns.problem(
                row,
                f"has no {' or '.join(ends)}, unlike other requests (this request has "
                f"{others or 'no other field'}). Name the field with --map FIELD=NAME; a "
                "failed request must have an error, a status or no output tokens",
            )


# numpy must not warn about infinite times, because a later check refuses them and names the row.
@np.errstate(invalid="ignore")
def _ends_of(requests: FileRequests, nothing: Flags) -> tuple[Floats, Floats, Any]:
    """Return the times of first and last tokens in seconds, and the known gaps between tokens.

    ``nothing`` is a mask of requests without an answer, whose times have no meaning.
    """
    columns, times, start = requests.columns, requests.times, requests.start.seconds
    length = len(start)
    first = times.moments("first_token", skipped=nothing).seconds
    for column in columns.of_fields("first_token")[:1]:
        _check_moments(columns, column, first, start)
    ttft = times.lengths("ttft", nothing)
    latency = times.lengths("latency", nothing)
    first = np.where(np.isnan(first), start + ttft, first)
    end = times.moments("end", skipped=nothing).seconds
    for column in columns.of_fields("end")[:1]:
        _check_moments(columns, column, end, start)
    times.check_lengths(latency, first - start, "latency")
    times.check_lengths(ttft, np.where(np.isnan(end), latency, end - start), "ttft")
    last = np.where(np.isnan(end), start + latency, end)
    # If the file has no ends of requests, requests count as ended at their first tokens.
    if not columns.of_fields(*LAST):
        last = first
    gaps = None
    lists = next(iter(columns.of_fields("itls", "gaps")), None)
    if lists is not None:
        gaps = times.gaps(lists, nothing.tolist())
    if gaps is not None and lists is not None and lists.field == "itls":
        streamed = np.array([len(one) > 0 for one in gaps])
        # All tokens of an answer that was not streamed arrive at once.
        if columns.layout.runs is not None:
            if columns.of_fields("latency"):
                whole = ~streamed & ~(first > start) & ~np.isnan(last)
                first = np.where(whole, last, first)
            last = np.where(streamed | np.isnan(last), first + _sums(gaps), last)
        elif not columns.of_fields("end", "latency"):
            last = first + _sums(gaps)
    made = np.empty(length, object)
    for row, one in enumerate(gaps or ()):
        made[row] = one
    return first, last, made


def _check_moments(
    columns: FileColumns, column: ColumnValues, moments: Floats, start: Floats
) -> None:
    """Raise DataError for a time that precedes its request's start or is on another clock.

    Wrong times usually come from a column of durations that was read as points in time.
    """
    check_zones(columns, column, moments, start)
    way = {"end": "latency", "first_token": "ttft"}.get(column.field)
    wrong = (of_other_clock(moments, start) & (moments <= MAX_TIME_S)) | (moments < start)
    if way is None or not wrong.any():
        return
    row = int(np.argmax(wrong))
    what = {"end": "its end", "first_token": "its first token"}[column.field]
    said = (
        f"{what} is before its start"
        if moments[row] < start[row]
        else f"{what} is not on the clock of its start"
    )
    hint = f"if {column.name} is a length of time, --map {way}={column.name}"
    raise columns.problem(row, f"{said} ({shown(column.field, column.values[row])}): {hint}")


def _sums(gaps: list[Floats]) -> Floats:
    return np.array([one.sum() for one in gaps])


def _status(states: Any, last: Floats, *, refuses: bool) -> dict[str, Any]:
    """Return the columns ``status`` (as in the table of requests) and ``failed``.

    A request without a recorded state counts as finished if its end is recorded. A request with
    neither a state nor an end counts as refused if ``refuses`` is True, and otherwise as failed.
    """
    unsaid, ended = states == UNSAID, ~np.isnan(last)
    unended = REFUSED if refuses else FAILED
    states = np.where(unsaid, np.where(ended, FINISHED, unended), states)
    return {"status": np.where(states == FAILED, REFUSED, states), "failed": states == FAILED}


NAMED = "/id "  # the separator before the session's name in a program's name


def _programs(requests: FileRequests, clients: Any, part: int, *, per_client: bool) -> Any:
    """Return the program of each request; a request without a session is a program by itself."""
    names = requests.labels("session")
    owners = clients if per_client else [""] * len(clients)
    found = [
        f"{part}/{owner}{NAMED}{name}" if name else f"{part}/row {row}"
        for row, (name, owner) in enumerate(zip(names, owners, strict=True))
    ]
    return np.array(found, object)


def _workers(columns: FileColumns) -> Any:
    """Return each request's worker as a number, or as a name if any worker has a name.

    NaN means that the worker of a request is unknown.
    """
    found = columns.of_fields("worker")
    if not found:
        return np.full(len(columns), np.nan)
    values = listed(found[0].values)
    if all(is_missing(one) or number_of(one) is not None for one in values):
        return numbers(columns, found[0])
    if any(isinstance(one, list | dict | bool) for one in values):
        return numbers(columns, found[0])  # raises DataError for the invalid value
    return np.array([np.nan if is_missing(one) else str(one) for one in values], object)


def _mend(made: dict[str, Any], mended: Mended) -> None:
    """Correct impossible counts of cached and input tokens, and count the corrections."""
    over = made["cached_tokens"] > made["input_tokens"]
    made["cached_tokens"] = np.where(over, made["input_tokens"], made["cached_tokens"])
    mended[OVERCACHED] += int(over.sum())
    uncounted = np.isnan(made["input_tokens"]) & (made["status"] == REFUSED)
    made["input_tokens"] = np.where(uncounted, 0.0, made["input_tokens"])
    mended[UNCOUNTED] += int(uncounted.sum())


def _check_values(made: Mapping[str, Any], columns: FileColumns) -> None:
    for what, rows in _impossible(made).items():
        if rows.any():
            row = int(np.argmax(rows))
            field, _, demand = what.partition(" must ")
            value = f"{field} = {made[field][row]:.17g}: must {demand}" if demand else what
            raise columns.problem(row, value)


def _impossible(made: Mapping[str, Any]) -> dict[str, Flags]:
    """Return messages about impossible values, each with a mask of the affected requests."""
    start, first, last = made["start"], made["first"], made["last"]
    ended = ~np.isnan(last)
    found: dict[str, Flags] = {
        "start is missing": np.isnan(start),
        "a time is infinite": np.isinf(start) | np.isinf(first) | np.isinf(last),
        "a time is beyond 10^12 s": np.any(np.abs([start, first, last]) > MAX_TIME_S, axis=0),
        "the first token is before the start": first < start,
        "the end is before the first token": last < first,
        "the request ended, but the first token is missing": ended & np.isnan(first),
        "the request is finished, but the end is missing": (made["status"] == FINISHED) & ~ended,
        "input_tokens is missing": np.isnan(made["input_tokens"]),
    }
    for field, (least, most) in COUNTS.items():
        values = made[field]
        if values.dtype != object:
            with np.errstate(invalid="ignore"):  # ``inf % 1`` is NaN.
                is_count = (values % 1 == 0) & (values >= least) & (values <= most)
            text = f"{field} must be a whole number from {least} to {most}"
            found[text] = ~np.isnan(values) & ~is_count
    return found
