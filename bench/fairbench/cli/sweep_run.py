"""``fairbench sweep`` under way: run what is left, compare, print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from fairbench.cli.output import look, print_json
from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.execute.interruption import interruptible
from fairbench.execute.sweep_jobs import expected_requests, jobs_left, run_jobs
from fairbench.execute.sweep_live import live_points_left, run_live_points
from fairbench.live.options import LiveOptions
from fairbench.report.comparison_table import comparison_text
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench.results.grid import point_names
from fairbench.results.store import write_json
from fairbench.results.sweep_metrics import write_metrics
from fairbench.results.sweep_store import SweepStore

REMARKS = ("workers", "errors", "lateness")  # notes of a run


def list_points(specs: Sequence[ExperimentSpec], *, as_json: bool) -> None:
    """Print the points, and how many requests each is expected to make."""
    requests = [round(expected_requests(spec, spec.client_plans())) for spec in specs]
    named = list(zip(point_names(specs), requests, strict=True))
    if as_json:
        print_json({"points": [{"name": name, "requests": count} for name, count in named]})
        return
    for name, count in named:
        typer.echo(f"{name}: about {count:,} requests")
    number = "1 point" if len(specs) == 1 else f"{len(specs)} points"
    typer.echo(f"{number}, about {sum(requests):,} requests in all")


def run_sweep(
    store: SweepStore,
    specs: Sequence[ExperimentSpec],
    options: LiveOptions,
    *,
    as_json: bool,
    show: bool,
) -> None:
    """Run what is not finished yet, compare everything, print it.

    Raises RunFailed if a point failed, after all the others. Exits 130 when interrupted.
    """
    store.discard_partial()
    with interruptible() as interrupted:
        simulated = run_jobs(store, jobs_left(store, specs), interrupted, show=show)
        left = live_points_left(store, specs)
        measured = run_live_points(store, left, options, interrupted, show=show)
        failures = [*((job.name, error) for job, error in simulated), *measured]
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
    for remark in _remarks(cells):
        typer.echo(f"fairbench: {remark}", err=True)
    if failures:
        raise RunFailed(f"{len(failures)} failed, see {store.path / 'failed'}")


def _comparison(
    store: SweepStore, cells: Sequence[SchedulerResults], failures: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "sweep": store.path.name,
        "path": str(store.path),
        "failures": [{"point": name, "error": error} for name, error in failures],
        "cells": [{"place": cell.place, "cell": cell.scheduler, **cell.combined} for cell in cells],
    }


def _print(
    comparison: Mapping[str, Any], cells: Sequence[SchedulerResults], path: Path, *, as_json: bool
) -> None:
    if as_json:
        print_json(comparison)
        typer.echo(f"fairbench: saved to {path}", err=True)
        return
    if cells:
        colour, width = look()
        typer.echo(comparison_text(cells, colour=colour, width=width), nl=False)
    typer.echo(f"files  {path}")
    for failure in comparison["failures"]:
        typer.echo(f"fairbench: {failure['point']}: {failure['error']}", err=True)


def _remarks(cells: Iterable[SchedulerResults]) -> Iterator[str]:
    """What makes runs on real servers hard to compare, by their own notes."""
    for cell in cells:
        for one in cell.runs:
            name = f"{cell.place}, {cell.scheduler}, seed {one.summary['seed']}"
            notes = one.summary["notes"]
            yield from (f"{name}: {notes[key]}" for key in REMARKS if key in notes)
