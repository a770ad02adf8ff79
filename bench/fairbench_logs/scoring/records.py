"""Conversion of other tools' records into the tables from which metrics are computed."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from os.path import realpath
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import DataError, UsageError, printable
from fairbench.files.times import ClockTime, clock_of, number_of
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Flags,
    Floats,
    Ints,
    Programs,
    Requests,
    TokenGaps,
)
from fairbench.results.run_facts import MAX_WORKER
from fairbench_logs.records.column_names import FieldColumn, mapped
from fairbench_logs.records.log_reader import FileColumns, ReadOptions
from fairbench_logs.records.requests import FileRequests as Records
from fairbench_logs.records.requests import read_requests
from fairbench_logs.scoring.arrays import FIELDS, NAMED, TWICE, Mended, arrays_of, check_needed
from fairbench_logs.scoring.states import SIGNS


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Request records from files: tables, client names, and the following properties.

    - ``last_token_s`` is the time of each request's last token in seconds, or NaN if unknown.
    - ``knows_admission`` is True if every answered request has an admission time.
    - ``knows_cached`` is True if every answered request has a number of cached tokens.
    - ``layouts`` are the names of the files' formats.
    - ``gaps_s`` are the times between successive tokens of finished requests, in seconds.
    - ``token_gaps`` are the times between successive tokens of all requests, in seconds.
    - ``failed`` is the number of requests that ended early, not counting refused requests.
    - ``remarks`` are sentences about records that were corrected.
    - ``clock`` converts times to timestamps; None means that the records have no timestamps.
    - ``sessions`` are the names of the programs, by program id.
    """

    clients: tuple[str, ...]
    requests: Requests
    programs: Programs
    last_token_s: Floats
    knows_admission: bool
    knows_cached: bool
    layouts: tuple[str, ...]
    gaps_s: Floats | None
    token_gaps: TokenGaps | None
    failed: int
    remarks: tuple[str, ...]
    clock: ClockTime | None = None
    sessions: tuple[str, ...] = ()

    @property
    def horizon_s(self) -> float:
        """The latest arrival, first token or last token of any request, in seconds."""
        requests = self.requests
        times = np.concatenate([requests.arrival_s, requests.first_token_s, self.last_token_s])
        return float(np.nanmax(times))


def read_scored(
    paths: Sequence[Path],
    *,
    layout: str | None = None,
    names: Mapping[str, str] | None = None,
    line: int | None = None,
    unit: str | None = None,
    registered: Sequence[str] = (),
) -> Scored:
    """Read the request records of one run as tables; times of all files must have one origin.

    Time 0 is the first start of a request, unless the records count time from the run's start.
    Raises DataError, which names file, request and field. Raises UsageError for a wrong layout.

    Args:
        paths: The files.
        layout: The name of the files' format, one of ``LAYOUTS``, or None to detect the format.
        names: The column name of each field whose column is not recognised.
        line: The line (from 1) that contains the column names, or None to detect this line.
        unit: The unit of times, such as "ms"; None means the file's stated unit, or seconds.
        registered: Clients that are included even without requests. Registered clients come first,
            and other clients follow in order of appearance.
    """
    for path, count in Counter(Path(realpath(path)) for path in paths).items():
        if count > 1:
            raise UsageError(
                f"{path}: the file is given {count} times, so its requests are repeated; "
                "give the file once"
            )
    asked = score_asked(mapped(names or {}), layout, line)
    parts = [read_requests(path, asked, unit) for path in paths]
    for part in parts:
        check_needed(part.columns)
    return scored_of(parts, paths, registered)


def score_asked(
    names: Mapping[str, FieldColumn], layout: str | None = None, line: int | None = None
) -> ReadOptions:
    """Return the options for reading a file of request records for ``fairbench score``.

    ``names`` maps fields to the columns that the user named. ``layout`` is the name of the file's
    format (see ``Layout``). ``line`` is the number of the run in a file with several runs.
    """
    signs = () if {"status", "error"} & names.keys() else tuple(SIGNS)
    return ReadOptions(FIELDS, names, layout, line=line or 0, signs=signs)


def scored_of(
    parts: Sequence[Records], paths: Sequence[Path], registered: Sequence[str] = ()
) -> Scored:
    """Merge the requests in several files of one run into tables with a common time origin.

    ``registered`` are clients that exist even if they sent no request.
    """
    made: list[dict[str, Any]] = []
    mended, stems = Mended(), _stems(paths)
    remarks: list[str] = []
    for number, (path, requests) in enumerate(zip(paths, parts, strict=True)):
        columns = requests.columns
        remarks += columns.remarks
        program = [column.name for column in columns.of_fields("session")]
        per_client = not columns.layout.keeps_clock and "program" not in program
        per_client &= not columns.is_named("session")
        part = arrays_of(
            requests, client=stems[number], part=number, mended=mended, per_client=per_client
        )
        made.append(part)
        remarks += _disagreement(path, columns.completed, part["status"])
    used = [one.columns.layout for one in parts]
    origin_s = 0.0
    if not all(one.keeps_clock for one in used):
        origin_s = min(float(part["start"].min()) for part in made)
    merged = {key: np.concatenate([part[key] for part in made]) for key in made[0]}
    merged["client"] = np.array([printable(str(one)) for one in merged["client"]], dtype=object)
    merged["worker"] = _worker_numbers(merged["worker"])
    for key in ("start", "first", "last", "admitted"):
        merged[key] = merged[key] - origin_s
    clients = tuple(dict.fromkeys([*registered, *merged["client"]]))
    for what, count in mended.items():
        if count:
            one = "line" if what == TWICE else "request"
            who = f"{count:,} {one}{'s, each of which' if count > 1 else ' that'}"
            remarks.append(f"{who} {what}")
    layouts = tuple(dict.fromkeys(one.name for one in used))
    scored = _tables(merged, clients, layouts, tuple(remarks))
    return replace(scored, clock=clock_of(origin_s, parts[0].times.zone, scored.horizon_s))


def _disagreement(path: Path, completed: int | None, status: Any) -> list[str]:
    found = int((status == FINISHED).sum())
    if completed in (None, found):
        return []
    return [f"{path.name} says that {completed:,} requests completed, but has records of {found:,}"]


def _worker_numbers(workers: Any) -> Any:
    """Return the number of each request's worker; names are numbered in order of appearance."""
    if workers.dtype != object:
        return workers
    names = [None if isinstance(one, float) and np.isnan(one) else f"{one}" for one in workers]
    codes = {name: code for code, name in enumerate(dict.fromkeys(filter(None, names)))}
    if len(codes) > MAX_WORKER:
        raise DataError(
            f"{len(codes):,} different names of workers: at most {MAX_WORKER:,} are allowed"
        )
    return np.array([np.nan if name is None else codes[name] for name in names])


def _stems(paths: Sequence[Path]) -> list[str]:
    """Return a name for each file: its stem, or its folder if all file names are equal."""
    stems = [path.name.removesuffix(".gz").rpartition(".")[0] or path.name for path in paths]
    folders = [path.absolute().parent.name for path in paths]
    alike = len(set(stems)) == 1 and len(set(folders)) == len(paths) > 1
    return folders if alike else stems


def _tables(
    merged: Mapping[str, Any],
    clients: tuple[str, ...],
    layouts: tuple[str, ...],
    remarks: tuple[str, ...],
) -> Scored:
    order = np.argsort(merged["start"], kind="stable")
    rows = {key: values[order] for key, values in merged.items()}
    answered = ~np.isnan(rows["first"])
    knows_admission = not np.isnan(rows["admitted"][answered]).any()
    knows_cached = not np.isnan(rows["cached_tokens"][answered]).any()
    if not knows_admission:
        rows["admitted"] = rows["first"]
    rows["cached_tokens"] = np.nan_to_num(rows["cached_tokens"])
    rows["asked"] = np.nan_to_num(rows["output_tokens"])
    sessions, program = np.unique(rows["program"].astype(str), return_inverse=True)
    requests = _requests(rows, clients, answered, program)
    programs = _programs(requests, rows["asked"])
    known = [
        gaps
        for gaps, state in zip(rows["gaps"], rows["status"], strict=True)
        if gaps is not None and len(gaps) and state == FINISHED
    ]
    token_gaps = TokenGaps.after(rows["first"], rows["gaps"], rows["name"].tolist())
    return Scored(
        clients,
        requests,
        programs,
        rows["last"],
        knows_admission,
        knows_cached,
        layouts,
        np.concatenate(known) if known else None,
        token_gaps if len(token_gaps.request) else None,
        int(rows["failed"].sum()),
        remarks,
        sessions=tuple(one.partition(NAMED)[2] or one for one in sessions.tolist()),
    )


def _requests(
    rows: Mapping[str, Any], clients: tuple[str, ...], answered: Flags, program: Ints
) -> Requests:
    code = {name: number for number, name in enumerate(clients)}
    input_tokens, cached = rows["input_tokens"], rows["cached_tokens"]
    length = len(answered)
    never, nothing = np.full(length, np.nan), np.zeros(length)
    return Requests.from_columns(
        {
            "request_id": np.arange(length),
            "program_id": program,
            "client": [code[name] for name in rows["client"]],
            "depth": nothing,
            "worker": np.nan_to_num(rows["worker"]),
            "arrival_s": rows["start"],
            "admitted_s": rows["admitted"],
            "first_token_s": rows["first"],
            "finish_s": rows["last"],
            "retracted_s": never,
            "readmitted_s": never,
            "input_tokens": input_tokens,
            "cached_tokens": cached,
            "extend_tokens": np.where(answered, input_tokens - cached, 0),
            "output_tokens": np.where(answered, rows["asked"], 0),
            "max_new_tokens": rows["asked"],
            "retractions": nothing,
            "recompute_tokens": nothing,
            "status": rows["status"],
        }
    )


def _programs(requests: Requests, asked: Floats) -> Programs:
    """Return the programs of the requests; a program ends when its last request ends.

    ``requests`` are in order of arrival. ``asked`` is the number of output tokens that each request
    asked for.
    """
    programs, first = np.unique(requests.program_id, return_index=True)
    count = len(programs)
    if (requests.client != requests.client[first][requests.program_id]).any():
        raise DataError(
            "program: a program has requests of several clients; choose another field with "
            "--map program=NAME"
        )
    status = np.full(count, FINISHED)
    # A program counts as refused if one of its requests was refused.
    for state in (UNFINISHED, REFUSED):
        status[requests.program_id[requests.status == state]] = state
    finish = np.full(count, -np.inf)
    np.maximum.at(finish, requests.program_id, np.nan_to_num(requests.finish_s))
    made = np.bincount(requests.program_id, minlength=count)
    return Programs.from_columns(
        {
            "program_id": programs,
            "client": requests.client[first],
            "arrival_s": requests.arrival_s[first],
            "finish_s": np.where(status == FINISHED, finish, np.nan),
            "requests": made,
            "demand_requests": made,
            "demand_input_tokens": np.bincount(requests.program_id, requests.input_tokens),
            "demand_output_tokens": np.bincount(requests.program_id, asked),
            "status": status,
        }
    )


def read_answers(path: Path) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return arrays that describe the streamed answers in a benchmark's output file.

    Raises DataError if no request has times and token counts.

    Returns: Five arrays of shape (n_answers,): the times (s) of first tokens and of last tokens,
        and the numbers of prompt tokens, of uncached prompt tokens and of output tokens.
    """
    records = read_requests(path, score_asked({}), estimated=True)
    if not records.columns.of_fields("start"):
        check_needed(records.columns, clients=False)
    rows = arrays_of(records, client="all", part=0, mended=Mended(), per_client=False)
    late_s = (
        _start_times(records.columns, rows["last"] - rows["start"], rows["start"]) - rows["start"]
    )
    first, last = rows["first"] + late_s, rows["last"] + late_s
    output, prompt = rows["output_tokens"], rows["input_tokens"]
    known = (output > 1) & (last > first) & (prompt > 0)
    if not known.any():
        raise DataError(
            f"{path}: no request has a time to first token, an end after the first token, and "
            "token counts; run the benchmark with streaming, and save each request's results"
        )
    new = np.maximum(1.0, prompt - np.nan_to_num(rows["cached_tokens"]))
    return first[known], last[known], prompt[known], new[known], output[known]


def _start_times(columns: FileColumns, latency_s: Floats, start_s: Floats) -> Floats:
    """Return the start time of each request in seconds, estimated if the file lacks start times.

    Files of SGLang's ``bench_serving`` have no start times. If the file states a request rate,
    requests are assumed to start at even intervals. If the file states a limit on concurrency, each
    request is assumed to start when an earlier request ends.
    """
    if not columns.layout.at_once or columns.is_named("start"):
        return start_s
    limit, rate = (number_of(columns.run.get(key)) for key in ("max_concurrency", "request_rate"))
    if rate is not None and 0 < rate < inf:
        return np.arange(len(latency_s)) / rate
    if limit is None:
        return start_s
    ends, starts = [0.0] * max(1, int(limit)), []
    for latency in latency_s.tolist():
        starts.append(begun := heapq.heappop(ends))
        heapq.heappush(ends, begun + (latency if latency > 0 else 0.0))
    return np.array(starts)
