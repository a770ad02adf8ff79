"""Runs that were measured on a real server, and their file format (docs/reference/validate.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import DataError, printable
from fairbench.files.formats import json_lines
from fairbench.metrics.records import Flags
from fairbench.schedulers.base import LocalScheduler
from fairbench_studies.kit.trace import Trace
from fairbench_studies.validation.records import records_of
from fairbench_studies.validation.report import NotReplayed, each, unique
from fairbench_studies.validation.slora.artifact import build_scheduler
from fairbench_studies.validation.slora.recorded import RECORDED, Recorded, recorded
from fairbench_studies.validation.span import CLOCK_S, check_span

_COLUMNS = {  # the field of ``Trace`` for each column of the file
    "client": "client",
    "prompt_len": "prompt_tokens",
    "output_len": "output_tokens",
    "req_time": "req_time_s",
    "first_token_latency": "first_token_latency_s",
    "request_latency": "request_latency_s",
}
_WITH_LENGTH = re.compile(r"(VTC|FCFS)-\d+")
# ``MAX_TOKENS`` limits a prompt or an answer to ten times the longest existing context.
MAX_TOKENS = 10_000_000
MAX_CLIENT = 2**31 - 1
MAX_TIME_S = 1e10  # larger values must be Unix times (seconds since 1970)
_COUNTS = ("client", "prompt_len", "output_len")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """A measured run whose path names ``scheduler`` and ``scenario``, as in VTC/overload.

    ``section`` is the VTC paper's section in this path, or "" if the path names no section.
    ``weights`` are the weights of the clients, or None if the scheduler's name implies them.
    ``folder`` distinguishes runs with equal schedulers and scenarios.
    """

    scheduler: str
    scenario: str
    trace: Trace
    recorded: Recorded = RECORDED[-1]
    weights: Mapping[str, float] | None = None
    folder: str = ""
    section: str = ""

    @property
    def name(self) -> str:
        """The run's name: ``scheduler/scenario``, or ``folder/scenario`` if there is a folder."""
        return f"{self.folder or self.scheduler}/{self.scenario}"

    def build_scheduler(self) -> LocalScheduler:
        """Return a new scheduler of the kind that the measured run used."""
        return build_scheduler(self.scheduler, self.recorded, self.weights)


def load_measured(path: Path) -> list[MeasuredRun]:
    """Load measured runs from JSON lines (or .gz), one run per line, sorted by name.

    Each line has ``path`` (``.../SCHEDULER/all_results_SCENARIO.jsonl``) and six lists with an
    entry per request: client, prompt_len, output_len, req_time, first_token_latency and
    request_latency. Times are seconds; -1 means that a request was refused. A run may also have
    ``recorded`` (a date) and ``weights`` (of the clients 0, 1, ...). Raises DataError, which names
    the file, the line and the field.
    """
    runs = [_measured(record, where) for where, record in json_lines(path, f"{path}")]
    if not runs:
        raise DataError(f"{path}: holds no records")
    runs.sort(key=lambda run: run.name)
    for one, other in pairwise(runs):
        if one.name == other.name:
            raise DataError(f"{path}: two runs have the name {one.name!r}; rename one")
    return runs


def read_measured(path: Path) -> tuple[list[MeasuredRun], list[NotReplayed]]:
    """Return the valid runs of a file, sorted by name, and the invalid runs with reasons.

    Raises:
        DataError: the file is not JSON, or no run can be read.
    """
    read, failed = each(
        lambda place: _measured(place.value, place.where),
        records_of(path),
        lambda place: _path_of(place.value),
    )
    runs, repeated = unique(read, lambda run: run.name)
    return sorted(runs, key=lambda run: run.name), [*failed, *repeated]


def _path_of(record: Any) -> str:
    path = record.get("path") if isinstance(record, dict) else None
    return path if isinstance(path, str) else "(no path)"


def _measured(record: Any, where: str) -> MeasuredRun:
    if not isinstance(record, dict) or not isinstance(record.get("path"), str):
        raise DataError(f"{where}: missing field 'path'")
    scheduler, scenario, folder = _names(record["path"], where)
    try:
        date = recorded(scheduler, scenario, record.get("recorded"))
        weights = _weights(record.get("weights"))
        build_scheduler(scheduler, date, weights)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    trace, section = _trace(record, where), _section(record["path"])
    return MeasuredRun(scheduler, scenario, trace, date, weights, folder, section)


def _names(path: str, where: str) -> tuple[str, str, str]:
    """Return the names of the scheduler, scenario and folder that the path of a run contains.

    - ``fair_bench/LShare/rpm5/all_results_real.jsonl``: scheduler ``LShare/rpm5``, scenario
      ``real``, no folder.
    - ``fair_bench/sec6.4/35000/VTC-256/all_results_x.jsonl``: scheduler ``VTC``, scenario ``x``,
      folder ``35000/VTC-256``.
    """
    *folders, file = printable(path).split("/")
    if not folders:
        raise DataError(f"{where}: field 'path' = {path!r}: must have the form SCHEDULER/FILE")
    scenario = file.split(".")[0].removeprefix("all_results_")
    if folders[-2:-1] == ["LShare"]:
        return "/".join(folders[-2:]), scenario, ""
    if lengths := _WITH_LENGTH.fullmatch(folders[-1]):
        return lengths[1], scenario, "/".join(folders[-2:])
    return folders[-1], scenario, ""


def _section(path: str) -> str:
    found = [folder for folder in path.split("/") if folder.startswith("sec")]
    return found[0] if found else ""


def _weights(values: Any) -> dict[str, float] | None:
    if values is None:
        return None
    numbers = values if isinstance(values, list) else []
    if not numbers or not all(isinstance(x, int | float) and 0 < x < inf for x in numbers):
        raise DataError("field 'weights' must be a list of positive numbers")
    return {str(client): float(weight) for client, weight in enumerate(numbers)}


def _trace(record: dict[str, Any], where: str) -> Trace:
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        if name not in record:
            raise DataError(f"{where}: missing field {name!r}")
        columns[name] = _column(record[name], name, where)
        if len(columns[name]) != len(columns["client"]):
            raise DataError(f"{where}: field {name!r} must have as many values as field 'client'")
    check_span(columns["req_time"], "req_time", where)
    refused = columns["request_latency"] < 0
    _check_answers(columns, ~refused, where)
    for name in ("first_token_latency", "request_latency"):
        columns[name] = np.where(refused, np.nan, columns[name])
    return Trace(**{column: columns[name] for name, column in _COLUMNS.items()})


def _check_answers(columns: Mapping[str, Any], answered: Flags, where: str) -> None:
    """Raise DataError if no request was answered, or if a request ended before its first token."""
    if not answered.any():
        raise DataError(f"{where}: no request was answered, so there is nothing to compare")
    first_s, last_s = (
        columns[name][answered] for name in ("first_token_latency", "request_latency")
    )
    if (wrong := (first_s < 0) | (first_s > last_s + CLOCK_S)).any():
        raise DataError(
            f"{where}: field 'first_token_latency' = {first_s[wrong][0]:g}: must be at least 0 "
            f"and at most this request's request_latency, {last_s[wrong][0]:g}"
        )


def _column(values: Any, name: str, where: str) -> Any:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        column = np.empty(0)
    if column.ndim != 1 or not column.size or not np.isfinite(column).all():
        raise DataError(f"{where}: field {name!r} must be a list of numbers")
    if name not in _COUNTS:
        if (np.abs(column) > MAX_TIME_S).any():
            raise DataError(f"{where}: field {name!r} must hold times of at most {MAX_TIME_S:g} s")
        return column
    least, most = (0, MAX_CLIENT) if name == "client" else (1, MAX_TOKENS)
    if (column < least).any() or (column > most).any() or (column != np.floor(column)).any():
        raise DataError(f"{where}: field {name!r} must hold whole numbers from {least} to {most}")
    return column.astype(np.int64)
