"""The execution of a single run, and the recovery of a killed run."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import read_spec
from fairbench.errors import UsageError
from fairbench.execute.live_runs import LiveFlags, live_runs
from fairbench.execute.tasks import RunContext
from fairbench.metrics.tables import RunResult
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.new_directories import FOLDER, check_writable, run_folder
from fairbench.results.store import EXPERIMENT, MANIFEST, begun_run, write_run
from fairbench.sim.records import FOLDER as SIMULATED
from fairbench.sim.run import recover as recover_simulated
from fairbench.sim.run import simulate


def run_and_save(
    spec: ExperimentSpec, live: LiveFlags, parent: Path, context: RunContext
) -> tuple[RunResult, Path]:
    """Run an experiment in a new directory in ``parent``; return its result and its directory.

    An interrupted run ends early and is saved. Raises Interrupted, and leaves no files, if a signal
    comes before the servers are ready. Raises UsageError if the run is impossible, and RunFailed if
    the run cannot continue.
    """
    check_writable(parent)
    with context.progress.watching():
        if spec.backend is None:
            return run_simulated(parent, spec, context)
        return live_runs(spec.backend, live).run(parent, spec, context)


def run_unsaved(spec: ExperimentSpec, live: LiveFlags, context: RunContext) -> RunResult:
    """Run ``spec`` as ``run_and_save`` does, without leaving files on disk."""
    if spec.backend is not None:
        with TemporaryDirectory(prefix="fairbench-") as temporary:
            return run_and_save(spec, live, Path(temporary), context)[0]
    with context.progress.watching():
        return simulate(spec, on_progress=context.on_progress, interrupted=context.interrupted)


def run_simulated(
    parent: Path, spec: ExperimentSpec, context: RunContext
) -> tuple[RunResult, Path]:
    """Simulate and save a run; if the experiment is impossible, no directory remains.

    If the run fails or is killed, the directory keeps the records for ``recover_run``.
    """
    watch = Stopwatch.start()
    with begun_run(parent, spec) as path, run_folder(path, SIMULATED) as folder:
        result = simulate(
            spec, folder=folder, on_progress=context.on_progress, interrupted=context.interrupted
        )
        manifest = build_manifest(spec, complete=result.complete, watch=watch)
        write_run(path, spec, result.tables(), result.summary, manifest)
        shutil.rmtree(folder)
    return result, path


def recover_run(path: Path) -> RunResult:
    """Save the finished requests of a killed run, and mark the run as incomplete.

    Requests that were unfinished when the run was killed are left out. Raises UsageError if the
    directory does not belong to a killed run, or if the run is still running.
    """
    if (path / MANIFEST).exists():
        raise UsageError(f"{path}: this run is saved already; print it with `fairbench show`")
    name = next((name for name in (FOLDER, SIMULATED) if (path / name).is_dir()), None)
    if name is None:
        raise UsageError(f"{path}: must be the directory of a run that was killed")
    spec = read_spec(path / EXPERIMENT)
    watch = Stopwatch.start()
    with run_folder(path, name) as folder:
        if spec.backend is None:
            result = recover_simulated(spec, folder)
        else:
            result = live_runs(spec.backend).recover(spec, folder)
        manifest = build_manifest(spec, complete=False, watch=watch) | result.about
        manifest |= {"recovered": True}
        write_run(path, spec, result.tables(), result.summary, manifest)
        # ``write_run`` has stored all records, so the folder of the simulation is deleted.
        if name == SIMULATED:
            shutil.rmtree(folder)
    return result
