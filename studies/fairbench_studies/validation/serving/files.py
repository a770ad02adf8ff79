"""Functions that read files of serving runs, and write comparisons as JSON and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench_studies.validation.records import name_of, records_of
from fairbench_studies.validation.report import NotReplayed, each, unique
from fairbench_studies.validation.serving.compare import ServingComparison
from fairbench_studies.validation.serving.engines import with_doubts
from fairbench_studies.validation.serving.measured import ServingRun, serving_run

NAME = "validation"


def load_serving(path: Path) -> list[ServingRun]:
    """Load the runs of a file in order.

    Raises DataError, which names the file, the line and the field.
    """
    runs: list[ServingRun] = []
    for where, record in records_of(path):
        runs.append(_run_of(record, where))
        if sum(run.name == runs[-1].name for run in runs) > 1:
            raise DataError(f"{where}: two runs have the name {runs[-1].name!r}; rename one")
    return runs


def read_serving(
    path: Path, *, predict: bool = False
) -> tuple[list[ServingRun], list[NotReplayed]]:
    """Read all valid runs of a file. Return the valid runs, and the invalid runs with reasons.

    With ``predict``, columns with measured results are not read.

    Raises:
        DataError: the file is not JSON, or no run can be read.
    """
    read, failed = each(
        lambda place: _run_of(place.value, place.where, predict=predict),
        records_of(path),
        lambda place: name_of(place.value),
    )
    runs, repeated = unique(read, lambda run: run.name)
    return with_doubts(runs), [*failed, *repeated]


def _run_of(record: Any, where: str, *, predict: bool = False) -> ServingRun:
    for field in ("run_id", "columns"):
        if not isinstance(record, dict) or field not in record:
            raise DataError(f"{where}: missing field {field!r}")
    return serving_run(record, where, predict=predict)


def write_comparison(
    directory: Path, runs: list[ServingComparison], tenants: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write the files ``validation.json`` and ``validation.csv``.

    Raises UsageError if a file cannot be written.
    """
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
    """Return all comparisons as JSON types. Runs with several tenants are in a separate list."""
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
