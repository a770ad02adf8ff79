"""Functions that read a file of request records and count each request exactly once.

Tracing tools also record spans that are not requests. The span of an agent or a chain repeats the
token counts of the calls inside the span. Several lines of a log may describe one request. Some
services include cached tokens in the number of input tokens, and others report two numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import DataError
from fairbench.files.times import number_of
from fairbench_logs.records.cells import is_missing, nameless
from fairbench_logs.records.column_names import FIRST, LAST, nearest, plain
from fairbench_logs.records.log_reader import FileColumns, Floats, ReadOptions, read_columns, shown
from fairbench_logs.records.times import Flags, Moments, Times, check_one_clock, numbers

NO_CALLS = frozenset(
    {
        *("agent", "chain", "tool", "retriever", "span", "event", "workflow", "task", "parser"),
        *("invoke_agent", "create_agent", "execute_tool", "invoke_workflow", "reranker"),
        *("guardrail", "evaluator", "prompt"),
    }
)
"""Kinds of spans (in lower case) that are not calls of a model."""
CALLS = frozenset({"llm", "chat", "generation", "completion", "text_completion", "chat_model"})
NOBODY = frozenset({"default_user_id"})
"""Names in the column of clients that stand for an unknown client."""
SAME_S = 1e-3  # Lines with equal ids and starts at most 1 ms apart describe one request.
BESIDE = ("cacheread", "cachecreation", "cachewrite")
WHOLE_INPUT = ("inputtokens", "inputtokencount", "inputtokenscount", "input")


@dataclass
class FileRequests:
    """The requests of a file; ``columns`` and all arrays have one row per request.

    ``input_tokens`` counts whole prompts, including cached tokens; unknown counts are NaN.
    ``repeated`` is the number of lines that repeat an earlier request, and ``spans`` is the number
    of records that are not requests.
    """

    columns: FileColumns
    times: Times
    start: Moments
    input_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    repeated: int = 0
    spans: int = 0

    def __len__(self) -> int:
        return len(self.columns)

    def labels(self, field: str) -> list[str]:
        """Return a field's values as texts; a missing value becomes ""."""
        return labels_of(self.columns, field)


def lacks_counts(requests: FileRequests) -> bool:
    """Return whether a file has no token counts, not even under a similar name."""
    columns, fields = requests.columns, ("input_tokens", "output_tokens")
    known = any(
        columns.of_fields(name) or name in columns.layout.fields for name in (*fields, "text")
    )
    return not known and not any(nearest(one, columns.samples, columns.taken) for one in fields)


def counted_alike(requests: FileRequests) -> FileRequests:
    """Return a copy of the requests in which each prompt and each answer has one token."""
    one = np.ones(len(requests))
    return replace(requests, input_tokens=one, output_tokens=one)


def read_requests(
    path: Path, asked: ReadOptions, unit: str | None = None, *, estimated: bool = False
) -> FileRequests:
    """Return the requests in a file of records.

    Args:
        path: The file to read.
        asked: The fields to read, and the user's options, such as the names of columns.
        unit: The unit of times for which the file states no unit, or None if unknown.
        estimated: Whether the caller estimates start times that the file lacks.

    Raises:
        DataError: If the file contains no requests, or if a value is impossible.
        UsageError: If an option in ``asked`` or ``unit`` contradicts the file.
    """
    columns = read_columns(path, asked)
    if not estimated:
        _check_at_once(columns)
    if unit is not None and columns.layout.own_units:
        raise DataError(
            f"{path}: records of {columns.layout.name} contain their units; leave --time-unit out"
        )
    counts = {name: known_counts(columns, name) for name in _COUNTED}
    kept = _model_calls(columns, counts)
    spans = len(columns) - int(kept.sum())
    if not kept.any():
        raise DataError(f"{path}: no requests: the file contains only other events")
    columns.keep_rows(kept)
    counts = {name: values[kept] for name, values in counts.items()}
    read, cached = _whole_prompts(columns, counts)
    # Some logs count reasoning tokens in the total tokens, but not in the output tokens.
    output, thought = counts["output_tokens"], np.nan_to_num(counts["reasoning_tokens"])
    missing = counts["total_tokens"] - read - output
    counts["output_tokens"] = np.where(
        (thought > 0) & (missing == thought), output + thought, output
    )
    times = Times(columns, unit, counts["output_tokens"])
    start = times.moments("start")
    _check_single(columns)
    made = FileRequests(
        *(columns, times, start, read, counts["output_tokens"], cached), spans=spans
    )
    for column in columns.of_fields("start")[:1]:
        check_one_clock(columns, start.seconds, column)
    times.check_dates(start)
    return _without_repetitions(made)


def _check_at_once(columns: FileColumns) -> None:
    """Raise DataError for records without start times unless all requests started together."""
    run = columns.run
    if not columns.layout.at_once or columns.is_named("start"):
        return
    if number_of(run.get("request_rate")) != inf or run.get("max_concurrency") is not None:
        raise DataError(
            f"{columns.file}: has no start times (sglang.bench_serving does not record them). "
            "Without start times, request_rate must be inf and max_concurrency must not be set. "
            "To read another run, choose a column of start times with --map start=NAME"
        )


SUMS = (
    *("nummodelrequests", "numrequests", "requestcount", "totalrequests", "requestscount"),
    *("requests", "nrequests", "numberofrequests", "apirequests", "calls", "apicalls", "numcalls"),
)
"""Names (normalised by ``plain``) of columns that count the requests in a row of a usage report."""


def _check_single(columns: FileColumns) -> None:
    """Raise DataError for a usage report, whose rows sum up several requests."""
    for name, values in columns.samples.items():
        if plain(name) in SUMS and any((number_of(one) or 0) > 1 for one in values):
            raise DataError(
                f"{columns.file}: {shown(name, max(values, key=lambda one: number_of(one) or 0))}: "
                "a row counts several requests; export a log with one request per row, or rename "
                "the column if it counts something else"
            )


_COUNTED = (
    *("input_tokens", "output_tokens", "cached_tokens", "written_tokens", "reasoning_tokens"),
    "total_tokens",
)


def known_counts(columns: FileColumns, field: str) -> Floats:
    """Return a field's token count for each request, from the first column that has a value."""
    found = np.full(len(columns), np.nan)
    for column in columns.of_fields(field):
        found = np.where(np.isnan(found), numbers(columns, column), found)
    return found


def labels_of(columns: FileColumns, field: str) -> list[str]:
    """Return a field's value for each request as text, from the first column that has a value."""
    found: list[str] | None = None
    for column in columns.of_fields(field):
        known: dict[Any, str] = {}
        texts = [_label_text(value, field, known) for value in column.values]
        found = texts if found is None else [a or b for a, b in zip(found, texts, strict=True)]
        if all(found):
            break
    return [""] * len(columns) if found is None else found


def _label_text(value: Any, field: str, known: dict[Any, str]) -> str:
    key = value if isinstance(value, str | int) else repr(value)
    if (text := known.get(key)) is None:
        missing = nameless if field == "client" else is_missing
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        text = "" if missing(value) or value in NOBODY_AT_ALL else str(value).strip()
        if field == "client" and text.lower() in NOBODY:
            text = ""
        known[key] = text
    return text


NOBODY_AT_ALL: tuple[Any, ...] = ([], {})


def _model_calls(columns: FileColumns, counts: Mapping[str, Floats]) -> Flags:
    """Return whether each record is a single call of a model, not a sum of calls."""
    kept = np.ones(len(columns), dtype=np.bool_)
    counted = ~(np.isnan(counts["input_tokens"]) & np.isnan(counts["output_tokens"]))
    kinds = [str(one).lower() for one in columns.field_values("span_kind") or ()]
    if kinds:
        kept &= np.array([one not in NO_CALLS for one in kinds])
    if columns.layout.events:
        called = np.array([one in CALLS for one in kinds]) if kinds else np.zeros(len(kept), bool)
        kept &= counted | called
    ids, parents = columns.field_values("span_id"), columns.field_values("parent_id")
    if ids and parents:
        row_of = {str(one): row for row, one in enumerate(ids) if not is_missing(one)}
        above = _ancestors(row_of, parents, np.flatnonzero(kept & counted).tolist())
        kept &= ~(above & counted)
    return kept


def _ancestors(row_of: Mapping[str, int], parents: list[Any], rows: list[int]) -> Flags:
    above = np.zeros(len(parents), dtype=np.bool_)
    for row in rows:
        at = row_of.get(str(parents[row]))
        while at is not None and not above[at] and at != row:
            above[at] = True
            at = row_of.get(str(parents[at]))
    return above


def _whole_prompts(columns: FileColumns, counts: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Return the token counts of whole prompts and of their cached parts.

    OpenAI and vLLM count cached tokens as part of the input. Anthropic and Bedrock report separate
    counts for tokens that were read from or written to a cache.
    """
    read, cached, written = (
        counts[name] for name in ("input_tokens", "cached_tokens", "written_tokens")
    )
    beside = np.nan_to_num(cached) + np.nan_to_num(written)
    if not beside.any() or not _are_beside(columns, counts, beside):
        return read, cached
    whole = np.where(np.isnan(read) & (beside == 0), np.nan, np.nan_to_num(read) + beside)
    return whole, np.where(np.isnan(cached) & ~np.isnan(written), 0.0, cached)


def _are_beside(columns: FileColumns, counts: Mapping[str, Floats], beside: Floats) -> bool:
    """Return whether cached tokens are counted separately from the input tokens.

    Cached tokens are counted separately if a column's name suggests so and some request has more
    cached than input tokens, or if most total token counts add cached tokens to input tokens.
    Without total token counts, the columns' names decide whether cached tokens are separate.
    """
    names = [one.name for one in columns.of_fields("cached_tokens", "written_tokens")]
    leaves = [plain(name.rpartition(".")[2]) for name in names]
    marked = any(mark in leaf for leaf in leaves for mark in BESIDE)
    if marked and (beside > np.nan_to_num(counts["input_tokens"])).any():
        return True
    rest = counts["total_tokens"] - counts["input_tokens"] - np.nan_to_num(counts["output_tokens"])
    thought, known = np.nan_to_num(counts["reasoning_tokens"]), beside > 0
    inside = int((known & ((rest == 0) | (rest == thought))).sum())
    outside = int((known & ((rest == beside) | (rest == beside + thought))).sum())
    if inside or outside:
        return outside > inside
    own = [plain(one.name.rpartition(".")[2]) for one in columns.of_fields("input_tokens")]
    anthropic = any(leaf.startswith(BESIDE) for leaf in leaves)
    return anthropic and any(one in WHOLE_INPUT for one in own)


def _without_repetitions(made: FileRequests) -> FileRequests:
    """Merge the lines that describe the same request, and return the requests.

    Lines are merged if they agree in id, client, session and prompt, and also in start if durations
    are recorded. The line with the largest output describes the request, which keeps its earliest
    start, and the values that only its first line states.
    """
    columns = made.columns
    ids = columns.field_values("request_id")
    if ids is None or len({*map(str, ids)}) == len(ids):
        return made
    clients, sessions = made.labels("client"), made.labels("session")
    if not _are_ids(columns, ids, clients):
        return made
    timed = any(one.first is not None for one in columns.of_fields(*FIRST, *LAST))
    prompts = zip(made.input_tokens.tolist(), made.cached_tokens.tolist(), strict=True)
    first: dict[Any, int] = {}
    kept = np.ones(len(made), dtype=np.bool_)
    starts, at_ns = made.start.seconds.copy(), made.start.ns.copy()
    best: dict[int, int] = {}
    for row, (one, client, session, prompt) in enumerate(
        zip(ids, clients, sessions, prompts, strict=True)
    ):
        if is_missing(one):
            continue
        earlier = first.setdefault((str(one), client, session, str(prompt)), row)
        if earlier == row:
            continue
        if timed and not abs(starts[row] - starts[earlier]) <= SAME_S:
            continue
        kept[row] = False
        if starts[row] < starts[earlier]:
            starts[earlier], at_ns[earlier] = starts[row], at_ns[row]
        rival = best.get(earlier, earlier)
        if np.nan_to_num(made.output_tokens[row]) > np.nan_to_num(made.output_tokens[rival]):
            best[earlier] = row
    if kept.all():
        return made
    _copy_values(columns, best)
    columns.keep_rows(kept)
    output = made.output_tokens.copy()
    output[[*best]] = output[[*best.values()]]
    output = output[kept]
    return FileRequests(
        columns,
        made.times.for_rows(columns, output),
        Moments(starts[kept], at_ns[kept]),
        made.input_tokens[kept],
        output,
        made.cached_tokens[kept],
        made.repeated + int((~kept).sum()),
        made.spans,
    )


def _copy_values(columns: FileColumns, best: Mapping[int, int]) -> None:
    """Copy values to each request's first line from the line with the largest output.

    A value that only the first line states is kept, unless the value tells how a request ended.

    Args:
        columns: The columns of the file, which are changed.
        best: The row with the largest output by the row of the request's first line.
    """
    alone = [(name,) for name in columns.fields if name not in (*FIRST, *LAST)]
    groups = [(name, columns.of_fields(*name)) for name in (FIRST, LAST, *alone)]
    for fields, found in (*groups, (("status",), columns.signs)):
        for earlier, row in best.items():
            if fields[0] in ENDED or not all(is_missing(one.values[row]) for one in found):
                for one in found:
                    values: Any = one.values
                    values[earlier] = values[row]
    for earlier, row in best.items():
        columns.places[earlier] = columns.places[row]
    columns.odd = {
        row: keys for row, keys in columns.odd.items() if best.get(row, row) in columns.odd
    }


ENDED = ("status", "error")


def _are_ids(columns: FileColumns, ids: list[Any], clients: list[str]) -> bool:
    """Return whether the values of an id column identify requests and not, for example, users.

    Values of a column that was recognised by its name are no ids of requests if most values belong
    to several clients, or if values of ``id`` or ``message_id`` occur in more than ``MOST_LINES``
    lines on average. A column ``id`` without texts, even one that the user named, holds no ids.
    """
    name = plain(columns.of_fields("request_id")[0].name.rpartition(".")[2])
    if name == "id" and not any(isinstance(one, str) and not one.isdigit() for one in ids):
        return False
    if columns.is_named("request_id") or "request_id" in columns.layout.fields:
        return True
    known = [(str(one), client) for one, client in zip(ids, clients, strict=True)]
    known = [one for one in known if not is_missing(one[0])]
    owners = Counter(one for one, client in {*known} if client)
    if 2 * sum(count > 1 for count in owners.values()) > len(owners) > 0:
        return False
    most = MOST_LINES if name in ("id", "messageid") else len(known)
    return len(known) <= most * len({one for one, _ in known})


MOST_LINES = 10
