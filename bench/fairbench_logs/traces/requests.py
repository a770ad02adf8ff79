"""Conversion of recorded requests to the table that a replay needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairbench.errors import DataError, shortened
from fairbench.files.formats import INTEGERS
from fairbench.workloads.tokens import estimated_tokens
from fairbench.workloads.traces import ALL, MAX_INPUT, MAX_NAME, MAX_OUTPUT
from fairbench.workloads.traces.table import TraceTable
from fairbench_logs.records.cells import is_blank
from fairbench_logs.records.column_names import (
    FieldColumn,
    given,
    no_client,
    no_column,
    no_such_column,
)
from fairbench_logs.records.layout import text_of
from fairbench_logs.records.log_reader import FileColumns, Floats, ReadOptions, listed, shown
from fairbench_logs.records.requests import FileRequests, known_counts
from fairbench_logs.records.times import NEVER_NS, Flags, Ints, check_range, check_zones, numbers
from fairbench_logs.traces.build import (
    BLOCK_TOKENS,
    MAX_SYNTHETIC,
    SINCE_1970_NS,
    PromptBlocks,
    blocks_of,
    table_of,
)


def client_name(value: Any, where: str) -> str:
    """Return a client's name, or ``ALL`` for an empty cell; a number becomes a text."""
    if is_blank(value):
        return ALL
    text = str(value).strip() if isinstance(value, str | int | float) else None
    if text is None or len(text) > MAX_NAME:
        raise DataError(f"{where}: client = {shortened(repr(value))}: must be a string or a number")
    return text


def prompt_text(value: Any, where: str) -> str:
    """Return the text of a prompt, or "" for an empty cell."""
    if is_blank(value) or value in ("[]", "{}", [], {}):
        return ""
    if not isinstance(value, str | list):
        raise DataError(f"{where}: text = {shortened(repr(value))}: must be a string or a list")
    return text_of(value)


def check_fit(blocks: int, size: int, tokens: int, where: str) -> None:
    """Raise DataError if a prompt of ``tokens`` tokens cannot have ``blocks`` blocks."""
    if blocks > -(-tokens // size):
        raise DataError(
            f"{where}: hash_ids: {blocks} blocks of {size} tokens are more than the "
            f"{tokens} input tokens of the request; give the number of tokens of a block "
            "with --trace-block-size"
        )


def _block_id(value: Any) -> Any:
    """Return a text or a float without a fraction as an integer, and any other value unchanged."""
    if isinstance(value, str):
        return int(value, 16 if value.lower().startswith("0x") else 10)
    exact = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if exact else value


def block_ids(value: Any, where: str) -> list[int]:
    """Return the block identities in a cell: a JSON list, or a text of separated numbers.

    An unsigned 64-bit identity becomes the signed number with the same bits. Block ids may be
    strings or whole floats, because some tools cannot write 64-bit integers exactly.
    """
    if given(value) is None:
        return []
    try:
        listed = value if isinstance(value, list) else value.strip("[]").replace(",", " ").split()
        found = [_block_id(one) for one in listed]
        if all(type(one) is int and one in INTEGERS for one in found):
            return [one - 2**64 if one >= 2**63 else one for one in found]
    except (AttributeError, ValueError):
        pass
    raise DataError(f"{where}: hash_ids = {shortened(repr(value))}: must be a list of integers")


FIELDS = (
    *("start", "client", "input_tokens", "output_tokens", "cached_tokens", "written_tokens"),
    *("reasoning_tokens", "total_tokens", "max_tokens", "session", "request_id", "end", "latency"),
    *("delay", "ttft", "first_token"),
    *("hash_ids", "block_size", "text", "branch", "synthetic"),
    *("span_kind", "span_id", "parent_id"),
)
"""The fields of records that a replay reads."""
CALLED = {"csv": "lines", "jsonl": "lines", "vtc": "vtc-columns"}
"""Trace formats whose name differs from the name of their layout, with the layout's name."""
LARGEST = {"input_tokens": MAX_INPUT, "output_tokens": MAX_OUTPUT, "max_tokens": MAX_OUTPUT}
WHOLE = "must be a whole number of tokens from 0 to"


class PromptText(NamedTuple):
    """The approximate number of tokens in a prompt's text, and the identities of its blocks."""

    tokens: int
    ids: Ints

    @property
    def nbytes(self) -> int:
        """The memory in bytes that the block ids take."""
        return self.ids.nbytes


def _prompt_blocks(value: Any, where: str) -> PromptText | None:
    text = prompt_text(value, where)
    return PromptText(estimated_tokens(text), np.array(blocks_of(text), np.int64)) if text else None


def _block_array(value: Any, where: str) -> Ints | None:
    found = block_ids(value, where)
    return np.array(found, np.int64) if found else None


CONVERT = {"text": _prompt_blocks, "hash_ids": _block_array}


def trace_asked(names: Mapping[str, FieldColumn], layout: str | None, line: int) -> ReadOptions:
    """Return the options for reading a trace file; without ``layout``, the format is detected."""
    calls = {} if layout is None else {layout: CALLED.get(layout, layout)}
    return ReadOptions(*(FIELDS, names, layout, calls, line, "--trace-line"), convert=CONVERT)


def format_name(layout: str, *, texts: bool) -> str:
    """Return the trace format of a layout; ``texts`` is True if all cells are texts, as in CSV."""
    if layout == CALLED["csv"]:
        return "csv" if texts else "jsonl"
    return "vtc" if layout == CALLED["vtc"] else layout


class TraceNotes(NamedTuple):
    """Facts about a trace: unit and zone of the times, the start time, and remarks for the user.

    ``nameless`` is a message if the trace has no client column, and "" otherwise. ``cached`` is the
    name of a column of cached tokens that replays ignore, or "" if there is none.
    """

    unit: str
    zone: str
    nameless: str
    cached: str
    began_s: float


def trace_table(
    requests: FileRequests, block_size: int = 0, *, counted: bool = True
) -> tuple[TraceTable, TraceNotes]:
    """Return recorded requests as a table, without requests that lack a prompt or an answer.

    Args:
        requests: The requests of a file.
        block_size: Tokens of each block in ``hash_ids``; 0 means the size that the file or the
            format defines.
        counted: Whether the file has token counts.

    Raises:
        DataError: If a value is impossible or a column is missing; the message names location and
            field.
    """
    columns = requests.columns
    _check_columns(columns, counted=counted)
    texts: list[PromptText | None] = _converted(columns, "text")
    hashes: list[Ints | None] = _converted(columns, "hash_ids")
    read = requests.input_tokens
    if columns.of_fields("text"):
        known = np.array([np.nan if one is None else one.tokens for one in texts])
        read = np.where(np.isnan(read), known, read)
    _check_counts(columns, "input_tokens", read)
    _check_counts(columns, "output_tokens", requests.output_tokens)
    kept: Flags = (read > 0) & (requests.output_tokens > 0)
    left_out = int((~kept).sum()) + columns.answered
    if not kept.any():
        failed = f", but for {left_out} that failed" if left_out else ""
        raise DataError(f"{columns.file}: no requests{failed}")
    rows = np.flatnonzero(kept)
    clients = [name or ALL for name in requests.labels("client")]
    sessions = requests.labels("session")
    _check_names(requests, "client", clients)
    _check_names(requests, "session", sessions)
    delay_s = requests.times.lengths("delay", ~kept)
    delay_ns = np.rint(np.nan_to_num(delay_s) * 1e9)
    think_ns = np.where(np.isnan(delay_s), -1, delay_ns).astype(np.int64)
    at_ns, took_ns = _request_times(requests, kept, think_ns, clients, sessions)
    parts, sizes = _blocks_of_requests(columns, rows, texts, hashes, read, block_size)
    names, codes = _numbered([clients[row] for row in rows.tolist()])
    _, session = _numbered(
        [(clients[row], sessions[row]) if sessions[row] else None for row in rows.tolist()]
    )
    most = known_counts(columns, "max_tokens")
    _check_counts(columns, "max_tokens", most)
    arrays = {
        "at": at_ns[rows],
        "end": took_ns[rows],
        "think": think_ns[rows],
        "client": codes,
        "input_tokens": read[rows].astype(np.int64),
        "output_tokens": requests.output_tokens[rows].astype(np.int64),
        "max_tokens": np.nan_to_num(most[rows]).astype(np.int64),
        "session": session,
        "block_size": sizes,
        "branch": _branch_numbers(columns)[rows],
        "shared": np.zeros(len(rows), np.int64),
    }
    began_s = float(at_ns[rows].min()) / 1e9
    table = table_of(names, arrays, parts, _synthetic_parts(columns, rows))
    named = "client" in columns.fields
    nameless = "" if named else no_client(columns.samples, columns.taken)
    notes = TraceNotes(
        requests.times.said,
        requests.times.zone,
        nameless,
        _unused_cached_column(requests, kept, parts),
        began_s,
    )
    return replace(table, left_out=left_out), notes


def _check_columns(columns: FileColumns, *, counted: bool) -> None:
    """Raise DataError if a required field, or a column that the user named, is missing."""
    instead = {"input_tokens": "text", "start": "session"}
    for field in ("start", "input_tokens", "output_tokens")[: None if counted else 1]:
        ways = [one for one in (field, instead.get(field)) if one]
        known = field in columns.layout.fields and not columns.is_named(field)
        if not known and not any(one in columns.fields for one in ways):
            raise no_column(field, columns.samples, columns.taken, columns.first_where)
    if columns.unseen:
        every = {**dict.fromkeys(columns.samples), **columns.record}
        raise no_such_column(columns.unseen[0], every, columns.file)
    if "start" not in columns.fields and "delay" not in columns.fields:
        raise no_column("start", columns.samples, (), columns.first_where)


def _check_counts(columns: FileColumns, field: str, found: Floats) -> None:
    known = np.isfinite(found) | np.isinf(found)
    wrong = known & ((found < 0) | (found > LARGEST[field]) | (found % 1 != 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        name = next((one.name for one in columns.of_fields(field)), field)
        what = f"{shown(name, f'{found[row]:.17g}')}: {WHOLE} {LARGEST[field]:,}"
        raise columns.problem(row, what)


def _converted(columns: FileColumns, field: str) -> list[Any]:
    found: list[Any] = [None] * len(columns)
    for column in columns.of_fields(field):
        found = [b if a is None else a for a, b in zip(found, column.values, strict=True)]
    return found


def _check_names(requests: FileRequests, field: str, names: list[str]) -> None:
    longest = max(names, key=len)
    if len(longest) > MAX_NAME:
        row = names.index(longest)
        what = f"{shown(field, longest)}: must be a string or a number"
        raise requests.columns.problem(row, what)


def _numbered(values: list[Any]) -> tuple[list[Any], Ints]:
    """Return the distinct values, and each value's index among the distinct values (None: -1)."""
    known: dict[Any, int] = {}
    codes = [-1 if one is None else known.setdefault(one, len(known)) for one in values]
    return list(known), np.array(codes, np.int64)


def _request_times(
    requests: FileRequests, kept: Flags, think_ns: Ints, clients: list[str], sessions: list[str]
) -> tuple[Ints, Ints]:
    """Return request arrivals and answer durations in ns; an unknown duration is -1."""
    columns, times = requests.columns, requests.times
    at_ns = requests.start.ns.copy()
    check_range(columns, requests.start.seconds, at_ns, "start")
    end = times.moments("end", skipped=~kept)
    check_range(columns, end.seconds, end.ns, "end")
    for column in columns.of_fields("end")[:1]:
        check_zones(columns, column, end.seconds, requests.start.seconds)
    latency_s = times.lengths("latency", ~kept)
    times.check_lengths(latency_s, np.full(len(columns), np.nan), "latency")
    too_long = np.where(latency_s > NEVER_NS / -2e9, NEVER_NS, 0)
    check_range(columns, latency_s, too_long, "latency")
    latency_ns = np.rint(np.nan_to_num(latency_s) * 1e9).astype(np.int64)
    untimed = kept & (at_ns == NEVER_NS)
    has_end = end.ns != NEVER_NS
    if untimed.any():
        _place_steps(requests, kept, at_ns, think_ns, latency_s, clients, sessions)
    took_ns = np.where(has_end, end.ns - at_ns, np.where(np.isnan(latency_s), -1, latency_ns))
    early = kept & has_end & (took_ns < 0)
    if early.any():
        row = int(np.argmax(early))
        column = columns.of_fields("end")[0]
        raise columns.problem(
            row,
            f"{shown(column.name, column.values[row])}: must not be before the arrival of the "
            "request",
        )
    return at_ns, took_ns


def _place_steps(
    requests: FileRequests,
    kept: Flags,
    at_ns: Ints,
    think_ns: Ints,
    latency_s: Floats,
    clients: list[str],
    sessions: list[str],
) -> None:
    """Compute the arrival of each step for which a session has only a delay after the step before.

    A session starts at time 0 if none of its requests has a time. Raises DataError if a session has
    no start time but other sessions start at calendar dates, and if a step with a time follows the
    first steps of its session without a time.
    """
    columns = requests.columns
    # ``ended`` maps each pair (client, session) to the end of the session's last step, in ns.
    ended: dict[tuple[str, str], int] = {}
    from_0: set[tuple[str, str]] = set()
    delayed = bool(columns.of_fields("delay")) and at_ns.max() < SINCE_1970_NS
    for row in np.flatnonzero(kept).tolist():
        step = clients[row], sessions[row]
        if at_ns[row] == NEVER_NS:
            before = ended.get(step)
            if not step[1] or (before is None and not delayed):
                raise _no_time(columns, row)
            if before is not None and think_ns[row] < 0:
                raise columns.problem(row, "must have a time, or a delay after the previous step")
            if before is None:
                from_0.add(step)
            at_ns[row] = (before or 0) + max(0, int(think_ns[row]))
        elif step in from_0:
            column = columns.of_fields("start")[0]
            raise columns.problem(
                row,
                f"{shown(column.name, listed(column.values)[row])}: the first step of session "
                f"{step[1]!r} has no time: give the steps of a session in order, the first with a "
                "time",
            )
        took_s = latency_s[row]
        ended[step] = int(at_ns[row]) + (0 if np.isnan(took_s) else round(took_s * 1e9))


def _no_time(columns: FileColumns, row: int) -> DataError:
    found = columns.of_fields("start")
    if not found:
        return no_column("start", columns.samples, (), columns.where(row))
    name = found[0].name.removeprefix("=")
    return columns.problem(
        row, f"{'time' if name == 'start' else name} = None: must be a number or an ISO 8601 time"
    )


def _blocks_of_requests(
    columns: FileColumns,
    rows: Ints,
    texts: list[PromptText | None],
    hashes: list[Ints | None],
    read: Floats,
    asked_size: int,
) -> tuple[PromptBlocks, Ints]:
    count = len(rows)
    counts, estimated, sizes = (np.zeros(count, np.int64) for _ in range(3))
    found: list[Ints] = []
    if columns.of_fields("hash_ids", "text"):
        stated = _block_size_of_row(columns)
        for place, row in enumerate(rows.tolist()):
            ids, text = hashes[row], texts[row]
            if ids is not None:
                sizes[place] = size = asked_size or stated(row)
                check_fit(len(ids), size, int(read[row]), columns.where(row))
            elif text is not None:
                ids, sizes[place], estimated[place] = text.ids, BLOCK_TOKENS, text.tokens
            if ids is not None:
                counts[place] = len(ids)
                found.append(ids)
    ids = np.concatenate(found) if found else np.zeros(0, np.int64)
    return PromptBlocks(counts, ids, estimated), sizes


def _block_size_of_row(columns: FileColumns) -> Any:
    of_file = columns.layout.block_size
    stated = np.full(len(columns), np.nan)
    for column in columns.of_fields("block_size"):
        stated = numbers(columns, column)

    def size(row: int) -> int:
        value = float(stated[row])
        if not np.isnan(value):
            if value % 1 or not 0 <= value <= MAX_INPUT:
                what = f"block_size = {value:g}: {WHOLE} {MAX_INPUT:,}"
                raise columns.problem(row, what)
            return int(value) or 1
        if not of_file:
            raise columns.problem(
                row,
                "hash_ids needs block_size: give the number of tokens of a block with "
                "--trace-block-size",
            )
        return of_file

    return size


def _branch_numbers(columns: FileColumns) -> Ints:
    found = columns.field_values("branch") or [0] * len(columns)
    right = (one if type(one) is int and 0 <= one < 2**31 else 0 for one in found)
    return np.array(list(right), np.int64)


def _synthetic_parts(columns: FileColumns, rows: Ints) -> tuple[str, ...]:
    found = columns.field_values("synthetic")
    if found is None:
        return ()
    texts = dict.fromkeys(found[row] for row in rows.tolist() if isinstance(found[row], str))
    return tuple(one for one in texts if one and len(one) <= MAX_NAME)[:MAX_SYNTHETIC]


def _unused_cached_column(requests: FileRequests, kept: Flags, parts: PromptBlocks) -> str:
    """Return the name of a column of cached tokens that replays ignore, or "" if there is none."""
    cached = requests.cached_tokens[kept]
    found = requests.columns.of_fields("cached_tokens")
    lost = bool(found) and bool(((np.nan_to_num(cached) > 0) & (parts.counts == 0)).any())
    return found[0].name if lost else ""
