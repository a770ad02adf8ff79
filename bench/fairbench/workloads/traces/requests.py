"""Records of requests as a trace: what a replay needs of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fairbench.errors import DataError
from fairbench.records.columns import Asked, Columns, Floats, shown
from fairbench.records.names import Column, no_client, no_column, no_such_column
from fairbench.records.requests import Requests
from fairbench.records.texts import tokens_of
from fairbench.records.times import NEVER_NS, Flags, Ints, numbers
from fairbench.workloads.traces.cells import block_ids, check_fit, prompt_text
from fairbench.workloads.traces.rows import ALL, MAX_INPUT, MAX_NAME, MAX_OUTPUT
from fairbench.workloads.traces.table import MAX_SYNTHETIC, Blocks, Table, table_of
from fairbench.workloads.traces.texts import BLOCK_TOKENS, blocks_of

FIELDS = (
    *("start", "client", "input_tokens", "output_tokens", "cached_tokens", "written_tokens"),
    *("reasoning_tokens", "total_tokens", "max_tokens", "session", "request_id", "end", "latency"),
    *("delay", "ttft", "first_token"),  # which show how the file writes numbers
    *("hash_ids", "block_size", "text", "branch", "synthetic"),
    *("span_kind", "span_id", "parent_id"),
)
"""The fields of records that are replayed."""
CALLED = {"csv": "lines", "jsonl": "lines", "vtc": "vtc-columns"}
"""Formats of traces that have another name as layouts of records."""
LARGEST = {"input_tokens": MAX_INPUT, "output_tokens": MAX_OUTPUT, "max_tokens": MAX_OUTPUT}
WHOLE = "must be a whole number of tokens from 0 to"


class PromptText(NamedTuple):
    """The approximate tokens of a prompt's text, and the identities of its blocks."""

    tokens: int
    ids: Ints

    @property
    def nbytes(self) -> int:
        """The memory that the identities take."""
        return self.ids.nbytes


def _text(value: Any, where: str) -> PromptText | None:
    text = prompt_text(value, where)
    return PromptText(tokens_of(text), np.array(blocks_of(text), np.int64)) if text else None


def _ids(value: Any, where: str) -> Ints | None:
    found = block_ids(value, where)
    return np.array(found, np.int64) if found else None


CONVERT = {"text": _text, "hash_ids": _ids}


def trace_asked(names: Mapping[str, Column], layout: str | None, line: int) -> Asked:
    """Return how to read a file that is replayed; a ``layout`` of None is to be found."""
    calls = {} if layout is None else {layout: CALLED.get(layout, layout)}
    return Asked(*(FIELDS, names, layout, calls, line, "--trace-line"), convert=CONVERT)


def format_name(layout: str, *, texts: bool) -> str:
    """Return the name of a layout as traces call it; ``texts`` is true for CSV."""
    if layout == CALLED["csv"]:
        return "csv" if texts else "jsonl"
    return "vtc" if layout == CALLED["vtc"] else layout


class Notes(NamedTuple):
    """Facts about a trace: unit and zone of its times, and what a reader should know.

    ``nameless`` says that no column has clients, ``cached`` names the column of cached tokens that
    are not replayed; "" for none.
    """

    unit: str
    zone: str
    nameless: str
    cached: str
    began_s: float


def trace_table(
    requests: Requests, block_size: int = 0, *, counted: bool = True
) -> tuple[Table, Notes]:
    """Return requests as a table, without those that have no prompt or no answer.

    Args:
        requests: Requests of a file.
        block_size: Tokens of each block in ``hash_ids``; 0 means that the file or format says it.
        counted: Whether the file has token counts.

    Raises:
        DataError: Naming the location and field of an impossible value, or a missing column.
    """
    columns = requests.columns
    _check_columns(columns, counted=counted)
    texts: list[PromptText | None] = _objects(columns, "text")
    hashes: list[Ints | None] = _objects(columns, "hash_ids")
    read = requests.input_tokens
    if columns.of("text"):
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
    think_ns = _think(requests, kept)
    at_ns, took_ns = _times(requests, kept, think_ns, clients, sessions)
    parts, sizes = _blocks(columns, rows, texts, hashes, read, block_size)
    names, codes = _codes([clients[row] for row in rows.tolist()])
    _, session = _codes(
        [(clients[row], sessions[row]) if sessions[row] else None for row in rows.tolist()]
    )
    most = _counts(columns, "max_tokens")
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
        "branch": _branches(columns)[rows],
        "shared": np.zeros(len(rows), np.int64),
    }
    began_s = float(at_ns[rows].min()) / 1e9
    table = table_of(names, arrays, parts, _synthetic(columns, rows))
    named = "client" in columns.fields
    nameless = "" if named else no_client(columns.samples, columns.taken)
    notes = Notes(
        requests.times.said, requests.times.zone, nameless, _cached(requests, kept, parts), began_s
    )
    return replace(table, left_out=left_out), notes


def _check_columns(columns: Columns, *, counted: bool) -> None:
    """Raise DataError for a field without a column, or a column of the user's that is absent."""
    instead = {"input_tokens": "text", "start": "session"}
    for field in ("start", "input_tokens", "output_tokens")[: None if counted else 1]:
        ways = [one for one in (field, instead.get(field)) if one]
        known = field in columns.layout.fields and not columns.named(field)
        if not known and not any(one in columns.fields for one in ways):
            raise no_column(field, columns.samples, columns.taken, columns.first_where)
    if columns.unseen:
        every = {**dict.fromkeys(columns.samples), **columns.record}
        raise no_such_column(columns.unseen[0], every, columns.file)
    if "start" not in columns.fields and "delay" not in columns.fields:
        raise no_column("start", columns.samples, (), columns.first_where)


def _check_counts(columns: Columns, field: str, found: Floats) -> None:
    known = np.isfinite(found) | np.isinf(found)
    wrong = known & ((found < 0) | (found > LARGEST[field]) | (found % 1 != 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        name = next((one.name for one in columns.of(field)), field)
        what = f"{shown(name, f'{found[row]:.17g}')}: {WHOLE} {LARGEST[field]:,}"
        raise columns.problem(row, what)


def _counts(columns: Columns, field: str) -> Floats:
    found = np.full(len(columns), np.nan)
    for column in columns.of(field):
        found = np.where(np.isnan(found), numbers(columns, column), found)
    _check_counts(columns, field, found)
    return found


def _objects(columns: Columns, field: str) -> list[Any]:
    """Return converted values of a field; None for none."""
    found: list[Any] = [None] * len(columns)
    for column in columns.of(field):
        found = [b if a is None else a for a, b in zip(found, column.values, strict=True)]
    return found


def _check_names(requests: Requests, field: str, names: list[str]) -> None:
    longest = max(names, key=len)
    if len(longest) > MAX_NAME:
        row = names.index(longest)
        what = f"{shown(field, longest)}: must be a text or a number"
        raise requests.columns.problem(row, what)


def _codes(values: list[Any]) -> tuple[list[Any], Ints]:
    """Return the different values, and a code for each value; -1 for None."""
    known: dict[Any, int] = {}
    codes = [-1 if one is None else known.setdefault(one, len(known)) for one in values]
    return list(known), np.array(codes, np.int64)


def _think(requests: Requests, kept: Flags) -> Ints:
    """Return the delays after the previous steps (ns), -1 for unknown ones."""
    delay_s = requests.times.lengths("delay", ~kept)
    return np.where(np.isnan(delay_s), -1, np.rint(np.nan_to_num(delay_s) * 1e9)).astype(np.int64)


def _times(
    requests: Requests, kept: Flags, think_ns: Ints, clients: list[str], sessions: list[str]
) -> tuple[Ints, Ints]:
    """Return when each kept request came (ns), and how long its answer took, -1 if unknown."""
    columns, times = requests.columns, requests.times
    at_ns = requests.start.ns.copy()
    _check_range(columns, requests.start.seconds, at_ns, "start")
    end = times.moments("end", skipped=~kept)
    _check_range(columns, end.seconds, end.ns, "end")
    latency_s = times.lengths("latency", ~kept)
    times.check_lengths(latency_s, np.full(len(columns), np.nan), "latency")
    too_long = np.where(latency_s > NEVER_NS / -2e9, NEVER_NS, 0)
    _check_range(columns, latency_s, too_long, "latency")
    latency_ns = np.rint(np.nan_to_num(latency_s) * 1e9).astype(np.int64)
    untimed = kept & (at_ns == NEVER_NS)
    has_end = end.ns != NEVER_NS
    if untimed.any():
        _place_steps(requests, kept, at_ns, think_ns, latency_s, clients, sessions)
    took_ns = np.where(has_end, end.ns - at_ns, np.where(np.isnan(latency_s), -1, latency_ns))
    early = kept & has_end & (took_ns < 0)
    if early.any():
        row = int(np.argmax(early))
        column = columns.of("end")[0]
        raise columns.problem(
            row,
            f"{shown(column.name, column.values[row])}: must not be before the arrival of the "
            "request",
        )
    return at_ns, took_ns


def _check_range(columns: Columns, seconds: Floats, ns: Ints, field: str) -> None:
    """Raise DataError for a time beyond what 64 bits hold in ns."""
    wrong = ~np.isnan(seconds) & (ns == NEVER_NS)
    if wrong.any():
        row, column = int(np.argmax(wrong)), columns.of(field)[0]
        raise columns.problem(
            row,
            f"{shown(column.name, column.values[row])}: must be a number (in s) or an ISO 8601 "
            "time, such as 2024-05-01T12:00:00Z, in the years 1824 to 2115",
        )


def _place_steps(
    requests: Requests,
    kept: Flags,
    at_ns: Ints,
    think_ns: Ints,
    latency_s: Floats,
    clients: list[str],
    sessions: list[str],
) -> None:
    """Set, in place, the times of steps that only have a delay after the previous step."""
    columns = requests.columns
    ended: dict[tuple[str, str], int] = {}  # when the last step of each session ended
    for row in np.flatnonzero(kept).tolist():
        step = clients[row], sessions[row]
        if at_ns[row] == NEVER_NS:
            if not step[1]:
                raise _no_time(columns, row)
            before = ended.get(step)
            if before is not None and think_ns[row] < 0:
                raise columns.problem(row, "must have a time, or a delay after the previous step")
            at_ns[row] = (before or 0) + max(0, int(think_ns[row]))
        took_s = latency_s[row]
        ended[step] = int(at_ns[row]) + (0 if np.isnan(took_s) else round(took_s * 1e9))


def _no_time(columns: Columns, row: int) -> DataError:
    found = columns.of("start")
    if not found:
        return no_column("start", columns.samples, (), columns.where(row))
    name = found[0].name.removeprefix("=")
    return columns.problem(
        row, f"{'time' if name == 'start' else name} = None: must be a number or an ISO 8601 time"
    )


def _blocks(
    columns: Columns,
    rows: Ints,
    texts: list[PromptText | None],
    hashes: list[Ints | None],
    read: Floats,
    asked_size: int,
) -> tuple[Blocks, Ints]:
    """Return the blocks of the kept requests, and the tokens of a block of each."""
    count = len(rows)
    counts, estimated, sizes = (np.zeros(count, np.int64) for _ in range(3))
    found: list[Ints] = []
    if columns.of("hash_ids", "text"):
        stated = _size_of(columns)
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
    return Blocks(counts, ids, estimated), sizes


def _size_of(columns: Columns) -> Any:
    """Return a function of a row that returns the tokens of its blocks."""
    of_file = columns.layout.block_size
    stated = np.full(len(columns), np.nan)
    for column in columns.of("block_size"):
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


def _branches(columns: Columns) -> Ints:
    """Return the number of each request's sub-agent in a fairbench trace, or 0."""
    found = columns.values("branch") or [0] * len(columns)
    right = (one if type(one) is int and 0 <= one < 2**31 else 0 for one in found)
    return np.array(list(right), np.int64)


def _synthetic(columns: Columns, rows: Ints) -> tuple[str, ...]:
    """Return the parts that a fairbench trace marks as not recorded."""
    found = columns.values("synthetic")
    if found is None:
        return ()
    texts = dict.fromkeys(found[row] for row in rows.tolist() if isinstance(found[row], str))
    return tuple(one for one in texts if one and len(one) <= MAX_NAME)[:MAX_SYNTHETIC]


def _cached(requests: Requests, kept: Flags, parts: Blocks) -> str:
    """Return the column of cached tokens that are not replayed, "" for none."""
    cached = requests.cached_tokens[kept]
    found = requests.columns.of("cached_tokens")
    lost = bool(found) and bool(((np.nan_to_num(cached) > 0) & (parts.counts == 0)).any())
    return found[0].name if lost else ""
