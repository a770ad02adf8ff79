"""A single run, simulated or on real servers, saved to a directory or kept in memory."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Saving
from fairbench.execute.files_read import files_of
from fairbench.execute.interruption import Interruption
from fairbench.live.backends.base import LiveOptions
from fairbench.live.run_folder import run_folder
from fairbench.results.directories import check_writable
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.run_result import RunResult
from fairbench.results.store import begun_run, save_run, write_run
from fairbench.sim.records.spool import FOLDER
from fairbench.sim.run import simulate


def run_and_save(
    spec: ExperimentSpec, options: LiveOptions, parent: Path, context: RunContext
) -> tuple[RunResult, Path]:
    """Run an experiment in a new directory in ``parent``; return result and directory.

    Once interrupted, the run ends as it stands and is saved. Raises Interrupted, and leaves
    nothing, if interrupted before servers were ready; UsageError if it is impossible, RunFailed if
    it could not go on.
    """
    check_writable(parent)
    with context.progress.watching():
        if spec.backend is None:
            return _simulate_in(parent, spec, context)
        from fairbench.execute.live_run import run_live_in  # needs the live extra

        return run_live_in(parent, spec, options, context)


def run_unsaved(spec: ExperimentSpec, options: LiveOptions, context: RunContext) -> RunResult:
    """Run the experiment as ``run_and_save`` does, but leave nothing on disk."""
    if spec.backend is not None:
        with TemporaryDirectory(prefix="fairbench-") as temporary:
            return run_and_save(spec, options, Path(temporary), context)[0]
    with context.progress.watching():
        return simulate(spec, on_progress=context.on_progress, interrupted=context.interrupted)


def simulation(spec: ExperimentSpec, parent: Path) -> Saving:
    """Return an executor task that simulates and saves a run, and returns its summary."""
    return Saving(partial(_simulate_and_save, spec), parent, files_of(spec))


def _simulate_and_save(
    spec: ExperimentSpec, parent: Path, interrupted: Interruption
) -> dict[str, Any]:
    watch = Stopwatch.start()
    result = simulate(spec, interrupted=interrupted)
    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    save_run(parent, spec, result.tables(), result.summary, manifest)
    return result.summary


def _simulate_in(parent: Path, spec: ExperimentSpec, context: RunContext) -> tuple[RunResult, Path]:
    """Simulate and save a run; an impossible experiment leaves no directory.

    If the run fails or is killed, the directory keeps the records so far (see
    ``execute.recovery``).
    """
    watch = Stopwatch.start()
    with begun_run(parent, spec) as path, run_folder(path, FOLDER) as folder:
        result = simulate(
            spec,
            folder=folder,
            on_progress=context.on_progress,
            interrupted=context.interrupted,
        )
        manifest = build_manifest(spec, complete=result.complete, watch=watch)
        write_run(path, spec, result.tables(), result.summary, manifest)
        shutil.rmtree(folder)
    return result, path
