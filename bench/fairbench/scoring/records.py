"""External records as the tables from which metrics are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from os.path import realpath
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import DataError, UsageError, printable
from fairbench.files.times import UNITS, Clock, clock_of, number_of
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Flags,
    Floats,
    Programs,
    Requests,
)
from fairbench.records.columns import Asked, Columns
from fairbench.records.names import Column, mapped
from fairbench.records.requests import Requests as Records
from fairbench.records.requests import read_requests
from fairbench.results.run_tables import MAX_WORKER
from fairbench.scoring.arrays import FIELDS, TWICE, Mended, arrays_of, check_needed
from fairbench.scoring.states import SIGNS


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Tables of records, their clients by name, and facts about the records.

    ``last_token_s`` is the time of each request's last token, NaN if unknown; ``gaps_s`` are all
    gaps between tokens of the finished requests, None if the records lack them. ``failed`` requests
    broke off and were not refused. ``remarks`` name records that were changed. ``clock`` has the
    dates of the times, if they are dates.
    """

    clients: tuple[str, ...]
    requests: Requests
    programs: Programs
    last_token_s: Floats
    knows_admission: bool
    knows_cached: bool
    layouts: tuple[str, ...]
    gaps_s: Floats | None
    failed: int
    remarks: tuple[str, ...]
    clock: Clock | None = None

    @property
    def horizon_s(self) -> float:
        """Return the time of the last event."""
        requests = self.requests
        times = np.concatenate([requests.arrival_s, requests.first_token_s, self.last_token_s])
        return float(np.nanmax(times))


def read_scored(
    paths: Sequence[Path],
    *,
    layout: str | None = None,
    names: Mapping[str, str] | None = None,
    line: int | None = None,
    unit_s: float | None = None,
    registered: Sequence[str] = (),
) -> Scored:
    """Return the records of files, which form one run with one clock, as tables.

    ``layout`` is one of ``LAYOUTS``, or detected; ``names`` maps fields to other column names.
    Times are in units of ``unit_s`` seconds; None means seconds unless the file says otherwise.
    Time 0 is the first start, unless the layout keeps the run's clock. The clients are the
    ``registered`` ones, served or not, then the others in order of appearance. Raises DataError
    naming file, request and field, UsageError for a wrong layout.
    """
    for path, count in Counter(Path(realpath(path)) for path in paths).items():
        if count > 1:
            raise UsageError(f"{path}: given {count} times, so its requests would be repeated")
    asked = score_asked(mapped(names or {}), layout, line)
    unit = None if unit_s is None else next(u for u, ns in UNITS.items() if ns == unit_s * 1e9)
    parts = [read_requests(path, asked, unit) for path in paths]
    for part in parts:
        check_needed(part.columns)
    return scored_of(parts, paths, registered)


def score_asked(
    names: Mapping[str, Column], layout: str | None = None, line: int | None = None
) -> Asked:
    """Return how to read a file that is scored."""
    signs = () if {"status", "error"} & names.keys() else tuple(SIGNS)
    return Asked(FIELDS, names, layout, line=line or 0, signs=signs)


def scored_of(
    parts: Sequence[Records], paths: Sequence[Path], registered: Sequence[str] = ()
) -> Scored:
    """Return the requests of files, which form one run with one clock, as tables."""
    made: list[dict[str, Any]] = []
    mended, stems = Mended(), _stems(paths)
    remarks: list[str] = []
    for number, (path, requests) in enumerate(zip(paths, parts, strict=True)):
        columns = requests.columns
        _check_at_once(columns)
        remarks += columns.remarks
        program = [column.name for column in columns.of("session")]
        per_client = not columns.layout.keeps_clock and "program" not in program
        per_client &= not columns.named("session")
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


def _check_at_once(columns: Columns) -> None:
    """Raise DataError for a run without start times whose requests did not start together."""
    run = columns.run
    if not columns.layout.at_once or columns.named("start"):
        return
    if number_of(run.get("request_rate")) != inf or run.get("max_concurrency") is not None:
        raise DataError(
            f"{columns.file}: has no start times (sglang.bench_serving does not record them). "
            "Without them, only a run at request_rate inf without max_concurrency can be "
            "scored; name a column of start times with --map start=NAME"
        )


def _disagreement(path: Path, completed: int | None, status: Any) -> list[str]:
    """Return a remark if a file's own count of successes differs."""
    found = int((status == FINISHED).sum())
    if completed in (None, found):
        return []
    return [f"{path.name} says that {completed:,} requests completed, by its records {found:,} did"]


def _worker_numbers(workers: Any) -> Any:
    """Return the numbers of workers; names are numbered in order of appearance."""
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
    """Return names for the files; files with equal names are named by their folders."""
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
    requests = _requests(rows, clients, answered)
    programs = _programs(requests, rows["asked"])
    known = [
        gaps
        for gaps, state in zip(rows["gaps"], rows["status"], strict=True)
        if gaps is not None and len(gaps) and state == FINISHED
    ]
    return Scored(
        clients,
        requests,
        programs,
        rows["last"],
        knows_admission,
        knows_cached,
        layouts,
        np.concatenate(known) if known else None,
        int(rows["failed"].sum()),
        remarks,
    )


def _requests(rows: Mapping[str, Any], clients: tuple[str, ...], answered: Flags) -> Requests:
    code = {name: number for number, name in enumerate(clients)}
    _, program = np.unique(rows["program"].astype(str), return_inverse=True)
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
    """Return the programs of requests in order of arrival; the last request ends a program."""
    programs, first = np.unique(requests.program_id, return_index=True)
    count = len(programs)
    if (requests.client != requests.client[first][requests.program_id]).any():
        raise DataError(
            "program: a program has requests of several clients; name another field with "
            "--map program=NAME"
        )
    status = np.full(count, FINISHED)
    for state in (UNFINISHED, REFUSED):  # one refused request fails its program
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
