"""A single run, simulated or on real servers, saved to a directory or kept in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fairbench.config import ExperimentSpec
from fairbench.execute.context import RunContext
from fairbench.metrics.tables import RunResult
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.new_directories import check_writable, run_folder
from fairbench.results.store import begun_run, write_run
from fairbench.sim.records.spool import FOLDER
from fairbench.sim.run import simulate

if TYPE_CHECKING:
    from fairbench.live.backends.base import LiveOptions


def run_and_save(
    spec: ExperimentSpec, options: LiveOptions | None, parent: Path, context: RunContext
) -> tuple[RunResult, Path]:
    """Run an experiment in a new directory in ``parent``; return result and directory.

    A simulation needs no options. Once interrupted, the run ends as it stands and is saved. Raises
    Interrupted, and leaves nothing, if interrupted before servers were ready; UsageError if it is
    impossible, RunFailed if it could not continue.
    """
    check_writable(parent)
    with context.progress.watching():
        if spec.backend is None:
            return run_simulated(parent, spec, context)
        from fairbench.execute.live_run import run_live_in  # needs the live extra

        assert options is not None, "real servers have options"
        return run_live_in(parent, spec, options, context)


def run_unsaved(
    spec: ExperimentSpec, options: LiveOptions | None, context: RunContext
) -> RunResult:
    """Run ``spec`` with ``options`` as ``run_and_save`` does, but leave nothing on disk."""
    if spec.backend is not None:
        with TemporaryDirectory(prefix="fairbench-") as temporary:
            return run_and_save(spec, options, Path(temporary), context)[0]
    with context.progress.watching():
        return simulate(spec, on_progress=context.on_progress, interrupted=context.interrupted)


def run_simulated(
    parent: Path, spec: ExperimentSpec, context: RunContext
) -> tuple[RunResult, Path]:
    """Simulate and save a run; an impossible experiment leaves no directory.

    If the run fails or is killed, the directory keeps the records so far (see
    ``execute.recovery``).
    """
    watch = Stopwatch.start()
    with begun_run(parent, spec) as path, run_folder(path, FOLDER) as folder:
        result = simulate(
            spec, folder=folder, on_progress=context.on_progress, interrupted=context.interrupted
        )
        manifest = build_manifest(spec, complete=result.complete, watch=watch)
        write_run(path, spec, result.tables(), result.summary, manifest)
        shutil.rmtree(folder)
    return result, path
