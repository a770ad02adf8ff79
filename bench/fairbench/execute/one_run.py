"""A single run, simulated or on real servers: saved, kept in memory, or recovered."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fairbench.config import ExperimentSpec
from fairbench.errors import UsageError
from fairbench.execute.context import RunContext
from fairbench.results.directories import FOLDER as LIVE_FOLDER
from fairbench.results.directories import check_writable, run_folder
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.run_tables import RunResult
from fairbench.results.store import EXPERIMENT, MANIFEST, begun_run, write_run
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
    impossible, RunFailed if it could not go on.
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
    ``recover_run``).
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


def recover_run(path: Path) -> RunResult:
    """Save the finished requests of a killed run, marked incomplete.

    What was under way when it was killed is not in it. Raises UsageError if the directory is not
    that of such a run, or if the run still goes on.
    """
    if (path / MANIFEST).exists():
        raise UsageError(f"{path}: this run is saved already; print it with `fairbench show`")
    name = next((name for name in (LIVE_FOLDER, FOLDER) if (path / name).is_dir()), None)
    if name is None:
        raise UsageError(f"{path}: must be the directory of a run that was killed")
    from fairbench.config.resolve import read_spec

    spec = read_spec(path / EXPERIMENT)
    watch = Stopwatch.start()
    recover: Callable[[ExperimentSpec, Path], RunResult]
    if spec.backend is None:
        from fairbench.sim.recovery import recover
    else:
        from fairbench.live.requirements import require_live_extra

        require_live_extra()
        from fairbench.live.outcome import recover
    with run_folder(path, name) as folder:
        result = recover(spec, folder)
        manifest = build_manifest(spec, complete=False, watch=watch) | result.about
        manifest |= {"recovered": True}
        write_run(path, spec, result.tables(), result.summary, manifest)
        if name == FOLDER:  # all of it is in the tables now
            shutil.rmtree(folder)
    return result
