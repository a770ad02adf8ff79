"""``fairbench sweep`` under way: run what is left, compare, print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from fairbench.cli.interrupt import interruptible
from fairbench.cli.output import look, print_json
from fairbench.cli.sweep_jobs import Job, expected_requests, jobs_left, run_jobs
from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.report.comparison import Cell, compare_sweep
from fairbench.report.comparison_table import as_text
from fairbench.report.places import point_names
from fairbench.report.store import write_json
from fairbench.report.sweep_metrics import write_metrics
from fairbench.report.sweep_store import SweepStore


def list_points(specs: Sequence[ExperimentSpec], *, as_json: bool) -> None:
    """Print the points, and how many requests each is expected to simulate."""
    requests = [round(expected_requests(spec, spec.client_plans())) for spec in specs]
    named = list(zip(point_names(specs), requests, strict=True))
    if as_json:
        print_json({"points": [{"name": name, "requests": count} for name, count in named]})
        return
    for name, count in named:
        typer.echo(f"{name}: about {count:,} requests")
    typer.echo(f"{len(specs)} points, about {sum(requests):,} requests in all")


def run_sweep(
    store: SweepStore, specs: Sequence[ExperimentSpec], *, as_json: bool, show: bool
) -> None:
    """Run what is not finished yet, compare everything, print it.

    Raises RunFailed if a point failed, after all the others. Exits 130 when interrupted.
    """
    store.discard_partial()
    with interruptible() as interrupted:
        failures = run_jobs(store, jobs_left(store, specs), interrupted, show=show)
    if interrupted():
        typer.echo(
            f"fairbench: interrupted; {len(store.finished())} of {len(specs)} points are finished. "
            f"Go on with: fairbench sweep --resume {store.path}",
            err=True,
        )
        raise typer.Exit(interrupted.exit_code)
    cells = compare_sweep(store.path)
    comparison = _comparison(store, cells, failures)
    write_json(store.path / "comparison.json", comparison)
    write_metrics(store.path, cells)
    _print(comparison, cells, store.path, as_json=as_json)
    if failures:
        raise RunFailed(f"{len(failures)} failed, see {store.path / 'failed'}")


def _comparison(
    store: SweepStore, cells: Sequence[Cell], failures: Iterable[tuple[Job, str]]
) -> dict[str, Any]:
    return {
        "sweep": store.path.name,
        "path": str(store.path),
        "failures": [{"point": job.name, "error": error} for job, error in failures],
        "cells": [{"place": cell.place, "cell": cell.scheduler, **cell.combined} for cell in cells],
    }


def _print(
    comparison: Mapping[str, Any], cells: Sequence[Cell], path: Path, *, as_json: bool
) -> None:
    if as_json:
        print_json(comparison)
        typer.echo(f"fairbench: saved to {path}", err=True)
        return
    if cells:
        colour, width = look()
        typer.echo(as_text(cells, colour=colour, width=width), nl=False)
    typer.echo(f"files  {path}")
    for failure in comparison["failures"]:
        typer.echo(f"fairbench: {failure['point']}: {failure['error']}", err=True)
