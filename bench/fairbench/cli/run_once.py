"""One run: on its backend, saved, its summary printed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairbench.errors import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairbench.cli.bench_file import OnSaved
    from fairbench.config import ExperimentSpec
    from fairbench.execute.interruption import Interruption
    from fairbench.live.backends.base import LiveOptions
    from fairbench.results.manifest import Stopwatch
    from fairbench.results.run_result import RunResult


def run_once(
    spec: ExperimentSpec,
    options: LiveOptions,
    result_dir: Path,
    on_saved: OnSaved,
    *,
    as_json: bool,
    show: bool,
) -> None:
    """Run an experiment on its backend, save it and print its summary; ``show`` progress or not.

    Exits with 128 plus a signal's number if interrupted. Raises RunFailed if it could not go on.
    """
    from fairbench.cli.progress import live_progress, progress_line
    from fairbench.execute.interruption import interruptible
    from fairbench.execute.live_run import as_progress_line, run_and_save
    from fairbench.results.directories import check_writable
    from fairbench.results.store import read_run

    check_writable(result_dir)
    line = progress_line if spec.backend is None else as_progress_line
    with interruptible() as interrupted:
        with live_progress(show, line) as on_progress:
            if spec.backend is None:
                result, path = _simulate(spec, result_dir, on_progress, interrupted)
            else:
                result, path = run_and_save(spec, options, result_dir, on_progress, interrupted)
        on_saved(read_run(path))
        _print(result, path, interrupted, as_json=as_json)


def _simulate(
    spec: ExperimentSpec,
    parent: Path,
    on_progress: Callable[[Any], None] | None,
    interrupted: Interruption,
) -> tuple[RunResult, Path]:
    """Run in a fresh directory in ``parent``, save, and return the result and the directory.

    Leaves no directory if the experiment is impossible. If it fails or is killed the directory
    keeps the records so far: see ``fairbench recover``.
    """
    from fairbench.live.run_folder import run_folder
    from fairbench.results.manifest import Stopwatch, build_manifest
    from fairbench.results.store import begun_run, write_run
    from fairbench.sim.records.spool import FOLDER
    from fairbench.sim.run import simulate

    watch = Stopwatch.start()
    with begun_run(parent, spec) as path, run_folder(path, FOLDER) as folder:
        result = simulate(spec, folder=folder, on_progress=on_progress, interrupted=interrupted)
        manifest = build_manifest(spec, complete=result.complete, watch=watch)
        write_run(path, spec, result.tables(), result.summary, manifest)
        shutil.rmtree(folder)
    return result, path


def _print(result: RunResult, path: Path, interrupted: Interruption, *, as_json: bool) -> None:
    """Print the summary. A run that did not come to its end exits here, and says why."""
    from fairbench.cli.output import print_json, print_summary

    if as_json:
        print_json(result.summary)
        typer.echo(f"fairbench: saved to {path}", err=True)
    else:
        print_summary(result.summary, path, complete=result.complete)
    if result.complete:
        return
    if not interrupted():
        raise RunFailed(f"{result.summary['notes']['complete']}; what had finished is saved")
    typer.echo("fairbench: interrupted; what had finished is saved", err=True)
    raise typer.Exit(interrupted.exit_code)


def save(parent: Path, spec: ExperimentSpec, result: RunResult, watch: Stopwatch) -> Path:
    """Save a result into a fresh directory in ``parent``; returns the directory."""
    from fairbench.results.manifest import build_manifest
    from fairbench.results.store import save_run

    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    return save_run(parent, spec, result.tables(), result.summary, manifest)
