"""Functions that write the comparison with S-LoRA runs as JSON, CSV and a figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench_studies.validation.slora.compare import RunComparison
from fairbench_studies.validation.slora.order import ScenarioOrder

NAME = "validation"


def as_json_object(
    runs: list[RunComparison],
    orders: list[ScenarioOrder],
    settings: Mapping[str, Any],
    checks: list[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """Return the comparison as JSON types, without cross-checks if ``checks`` is None."""
    whole: dict[str, Any] = {
        **settings,
        "runs": [run.as_dict() for run in runs],
        "orders": [asdict(order) for order in orders],
    }
    return whole if checks is None else {**whole, "crosschecks": checks}


def check_output(directory: Path) -> None:
    """Raise UsageError if the output directory cannot be created."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output_dir {directory}: cannot be created: {error.strerror}") from None


def write_files(
    directory: Path, whole: Mapping[str, Any], runs: list[RunComparison], title: str, basis: str
) -> bool:
    """Write ``validation.json``, ``.csv`` and, if matplotlib is installed, ``.svg`` and ``.png``.

    Returns whether the figure was written. Raises UsageError if a file cannot be written.
    """
    path = directory / NAME
    drawable = find_spec("matplotlib") is not None
    try:
        text = json.dumps(whole, allow_nan=False, indent=1) + "\n"
        path.with_suffix(".json").write_text(text, encoding="utf-8")
        path.with_suffix(".csv").write_text(_csv(runs), encoding="utf-8")
        if drawable:
            from fairbench_studies.validation.slora.figure import draw

            draw(runs, title, basis, (path.with_suffix(".svg"), path.with_suffix(".png")))
    except OSError as error:
        raise UsageError(f"output_dir {directory}: cannot be written: {error.strerror}") from None
    return drawable


def _csv(runs: list[RunComparison]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "fitted", "number", "simulated", "measured", "error_pct"])
    for run in runs:
        for column, pair in (*run.columns(), *run.other_columns()):
            values = pair.as_dict().values()
            cells = ["" if value is None else f"{value:.5g}" for value in values]
            writer.writerow([run.name, "yes" if run.fitted else "no", column, *cells])
    return text.getvalue()
