"""``fairbench validate --overview FILE...``: a table and a picture of all measured runs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import typer

from fairbench.errors import DataError, UsageError
from fairbench.results.new_directories import check_writable
from fairbench.results.store import write_json, write_text
from fairbench_studies.validation.overview.points import METRICS, Point, files_of, points_of
from fairbench_studies.validation.overview.table import overview_text, rows_of
from fairbench_studies.validation.report import NotReplayed, Report

NAME = "overview"


def overview(paths: Sequence[Path], output_dir: Path | None, profile: str | None) -> Report:
    """Replay all runs of the files and directories, and write ``overview.{json,csv,svg,png}``.

    Raises:
        UsageError: a file or directory holds no measured runs, or no run can be replayed.
    """
    if output_dir is not None:
        check_writable(output_dir)
    points: list[Point] = []
    failed: list[NotReplayed] = []
    files = list(files_of(paths))
    if not files:
        raise UsageError(f"{paths[0]}: this directory holds no files of measured runs")
    for file in files:
        try:
            made, left = points_of(file, profile)
        except DataError as error:
            made, left = [], [NotReplayed(str(file), str(error))]
        points += made
        failed += left
    if not points:
        raise UsageError(f"no run can be replayed; the first reason: {failed[0].reason}")
    whole = {
        "rows": [row.as_dict() for row in rows_of(points)],
        "runs": [point.as_dict() for point in points],
    }
    report = Report(whole, overview_text(points), failed)
    if output_dir is not None:
        _write(output_dir, report, points)
    return report


def _write(directory: Path, report: Report, points: Sequence[Point]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    write_json(path.with_suffix(".json"), report.as_dict())
    write_text(path.with_suffix(".csv"), _csv(points))
    if find_spec("matplotlib") is None:
        typer.echo("fairbench: no picture: it needs pip install '.[plot]'", err=True)
    else:
        from fairbench_studies.validation.overview.figure import draw

        draw(points, (path.with_suffix(".svg"), path.with_suffix(".png")))
    typer.echo(f"fairbench: written to {directory}", err=True)


def _csv(points: Sequence[Point]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = ("engine", "gpu", "model", "prompts", "name", "profile", "fitted")
    writer.writerow([*keys, "metric", "unit", "simulated", "measured", "error_pct"])
    for point in points:
        labels = [getattr(point, key) for key in keys]
        for metric, pair in point.pairs.items():
            cells = ["" if x is None else f"{x:.5g}" for x in pair.as_dict().values()]
            writer.writerow([*labels, metric, METRICS[metric], *cells])
    return text.getvalue()
