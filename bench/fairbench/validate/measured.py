"""Runs that were measured on a real server: the file, and the schedulers that it names."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.errors import DataError, unknown_name
from fairbench.metrics.trace import Trace
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.registry import build_local

# Name in [VTC-artifact] (fair_bench/) -> local scheduler here and its settings. They charge
# the whole input, and the artifact's form of VTC is what produced the records.
_ARTIFACT = {"charge": "input", "form": "artifact"}
_SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "FCFS": ("fcfs", {}),
    "LCF": ("lcf", _ARTIFACT),
    "VTC": ("vtc", _ARTIFACT),
    "VTC_oracle": ("vtc-predict", _ARTIFACT),
    "VTC_pred_50": ("vtc-predict", {**_ARTIFACT, "error": 0.5}),
    "VTC_predict": ("vtc-predict", {**_ARTIFACT, "predictor": "average"}),
}
_RATE_LIMIT = re.compile(r"LShare/rpm([1-9]\d*)")
KNOWN_SCHEDULERS = (*_SCHEDULERS, "LShare/rpmN")

_COLUMNS = {  # of the file -> of Trace
    "client": "client",
    "prompt_len": "prompt_tokens",
    "output_len": "output_tokens",
    "req_time": "req_time_s",
    "first_token_latency": "first_token_latency_s",
    "request_latency": "request_latency_s",
}
_COUNTS = ("client", "prompt_len", "output_len")


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """``scheduler`` and ``scenario`` as the run's path names them, e.g. VTC and overload."""

    scheduler: str
    scenario: str
    trace: Trace

    @property
    def name(self) -> str:
        """``scheduler/scenario``."""
        return f"{self.scheduler}/{self.scenario}"


def build_scheduler(measured_name: str) -> LocalScheduler:
    """A fresh scheduler of the kind that a measured run was made with.

    Raises DataError for one that is not known here.
    """
    if limit := _RATE_LIMIT.fullmatch(measured_name):
        return build_local("rpm", {"rpm.limit": int(limit[1])})
    if measured_name not in _SCHEDULERS:
        error = unknown_name("scheduler of a measured run", measured_name, KNOWN_SCHEDULERS)
        raise DataError(str(error))
    name, params = _SCHEDULERS[measured_name]
    return build_local(name, {f"{name}.{param}": value for param, value in params.items()})


def load_measured(path: Path) -> list[MeasuredRun]:
    """Measured runs from JSON lines (``.gz`` or not), one run a line, sorted by name.

    Each has ``path`` (``.../SCHEDULER/all_results_SCENARIO.jsonl``) and equally long lists of
    client, prompt_len, output_len, req_time, first_token_latency and request_latency (s; -1 means
    refused). Raises DataError naming file, line and field, also for an unknown scheduler.
    """
    runs = []
    for number, text in lines(path):
        where = f"{path}, line {number}"
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not JSON: {error.msg}") from None
        runs.append(_measured(record, where))
    if not runs:
        raise DataError(f"{path}: no records")
    runs.sort(key=lambda run: run.name)
    for one, other in pairwise(runs):
        if one.name == other.name:
            raise DataError(f"{path}: two runs are called {one.name!r}")
    return runs


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file, packed (``.gz``) or not. Raises DataError if unreadable."""
    try:
        packed = path.suffix == ".gz"
        with gzip.open(path, "rt") if packed else path.open(encoding="utf-8") as lines:
            yield from enumerate(lines, start=1)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read: {reason}") from None


def _measured(record: Any, where: str) -> MeasuredRun:
    if not isinstance(record, dict) or not isinstance(record.get("path"), str):
        raise DataError(f"{where}: missing field 'path'")
    scheduler, scenario = _names(record["path"], where)
    try:
        build_scheduler(scheduler)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    return MeasuredRun(scheduler, scenario, _trace(record, where))


def _names(path: str, where: str) -> tuple[str, str]:
    """``fair_bench/LShare/rpm5/all_results_real.jsonl`` -> ``LShare/rpm5``, ``real``."""
    *folders, file = path.split("/")
    if not folders:
        raise DataError(f"{where}: field 'path' = {path!r} names no scheduler: SCHEDULER/FILE")
    kept = folders[-2:] if folders[-2:-1] == ["LShare"] else folders[-1:]
    return "/".join(kept), file.split(".")[0].removeprefix("all_results_")


def _trace(record: dict[str, Any], where: str) -> Trace:
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        if name not in record:
            raise DataError(f"{where}: missing field {name!r}")
        columns[name] = _column(record[name], name, where)
        if len(columns[name]) != len(columns["client"]):
            raise DataError(f"{where}: field {name!r} is not as long as 'client'")
    refused = columns["request_latency"] < 0
    for name in ("first_token_latency", "request_latency"):
        columns[name] = np.where(refused, np.nan, columns[name])
    return Trace(**{column: columns[name] for name, column in _COLUMNS.items()})


def _column(values: Any, name: str, where: str) -> Any:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        column = np.empty(0)
    if column.ndim != 1 or not column.size or not np.isfinite(column).all():
        raise DataError(f"{where}: field {name!r} must be a list of numbers")
    if name not in _COUNTS:
        return column
    least = 0 if name == "client" else 1
    if (column < least).any() or (column != np.floor(column)).any():
        raise DataError(f"{where}: field {name!r} must hold whole numbers of at least {least}")
    return column.astype(np.int64)
