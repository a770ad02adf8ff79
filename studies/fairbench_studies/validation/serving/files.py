"""Serving runs and their comparison as files: reading runs, writing JSON and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.files.json_text import json_lines
from fairbench_studies.validation.report import NotReplayed, each
from fairbench_studies.validation.serving.compare import ServingComparison
from fairbench_studies.validation.serving.measured import ServingRun, is_serving_run, serving_run

NAME = "validation"


def holds_serving_runs(path: Path) -> bool:
    """Return whether the first line of the file is a run of a serving engine."""
    with suppress(DataError):  # which the reader of the other runs repeats
        for _, record in json_lines(path, f"{path}"):
            return is_serving_run(record)
    return False


def load_serving(path: Path, *, predict: bool = False) -> list[ServingRun]:
    """Load every run of the file in order. Raises DataError with file, line and field."""
    runs: list[ServingRun] = []
    for where, record in json_lines(path, f"{path}"):
        if not is_serving_run(record):
            raise DataError(f"{where}: missing field 'run_id' or 'columns'")
        runs.append(serving_run(record, where, predict=predict))
        if sum(run.name == runs[-1].name for run in runs) > 1:
            raise DataError(f"{where}: two runs have the name {runs[-1].name!r}; rename one")
    return runs


def read_serving(path: Path) -> tuple[list[ServingRun], list[NotReplayed]]:
    """Read all readable runs of the file, and the reasons for the others.

    Raises:
        DataError: the file is no JSON lines, two runs share a name, or no run can be read.
    """
    places = list(json_lines(path, f"{path}"))
    runs, failed = each(
        lambda place: _run_of(place.value, place.where), places, lambda place: _name_of(place.value)
    )
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            raise DataError(f"{path}: two runs have the name {run.name!r}; rename one")
    return runs, failed


def _run_of(record: Any, where: str) -> ServingRun:
    if not is_serving_run(record):
        raise DataError(f"{where}: missing field 'run_id' or 'columns'")
    return serving_run(record, where)


def _name_of(record: Any) -> str:
    name = record.get("run_id") if isinstance(record, dict) else None
    return name if isinstance(name, str) else "(no run_id)"


def write_comparison(
    directory: Path, runs: list[ServingComparison], tenants: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write ``validation.json`` and ``validation.csv``. Raises UsageError on failure."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        whole = json.dumps(as_json_object(runs, tenants), allow_nan=False, indent=1) + "\n"
        (directory / f"{NAME}.json").write_text(whole, encoding="utf-8")
        with (directory / f"{NAME}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["run", "fitted", "number", "simulated", "measured", "error_pct"])
            writer.writerows(row for run in runs for row in _rows(run))
    except OSError as error:
        raise UsageError(f"output_dir {directory}: cannot be written: {error.strerror}") from None


def as_json_object(
    runs: list[ServingComparison], tenants: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return all comparisons as plain values; runs with several tenants have a separate list."""
    whole: dict[str, Any] = {"runs": [run.as_dict() for run in runs]}
    return {**whole, "tenants": list(tenants)} if tenants else whole


def _rows(run: ServingComparison) -> Iterator[list[str]]:
    pairs = {
        "throughput_tok_s": run.throughput,
        "tpot_p50_ms": run.tpot_p50_ms,
        "refused": run.refused,
    }
    for ttft in run.ttft:
        pairs[f"ttft_p50_s/{ttft.group}"] = ttft.p50_s
        pairs[f"ttft_p99_s/{ttft.group}"] = ttft.p99_s
    for window in run.windows[:1]:
        pairs["jain_index"] = window.jain
    for name, pair in pairs.items():
        values = (pair.simulated, pair.measured, pair.error_pct)
        numbers = ["" if value is None or value != value else f"{value:.5g}" for value in values]
        yield [run.name, str(run.fitted).lower(), name, *numbers]
