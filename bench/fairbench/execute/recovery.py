"""Recovery of a killed run as a stored run."""

from __future__ import annotations

import shutil
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import read_spec
from fairbench.errors import UsageError
from fairbench.live.requirements import require_live_extra
from fairbench.metrics.tables import RunResult
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.new_directories import FOLDER, run_folder
from fairbench.results.store import EXPERIMENT, MANIFEST, write_run
from fairbench.sim.records.spool import FOLDER as SIMULATED
from fairbench.sim.recovery import recover as recover_simulated


def recover_run(path: Path) -> RunResult:
    """Save the finished requests of a killed run, marked incomplete.

    Unfinished requests are left out. Raises UsageError if the directory is not that of such a run,
    or if the run is still running.
    """
    if (path / MANIFEST).exists():
        raise UsageError(f"{path}: this run is saved already; print it with `fairbench show`")
    name = next((name for name in (FOLDER, SIMULATED) if (path / name).is_dir()), None)
    if name is None:
        raise UsageError(f"{path}: must be the directory of a run that was killed")
    spec = read_spec(path / EXPERIMENT)
    watch = Stopwatch.start()
    with run_folder(path, name) as folder:
        result = _recovered(spec, folder)
        manifest = build_manifest(spec, complete=False, watch=watch) | result.about
        manifest |= {"recovered": True}
        write_run(path, spec, result.tables(), result.summary, manifest)
        if name == SIMULATED:  # everything in it is now in the tables
            shutil.rmtree(folder)
    return result


def _recovered(spec: ExperimentSpec, folder: Path) -> RunResult:
    if spec.backend is None:
        return recover_simulated(spec, folder)
    require_live_extra()
    from fairbench.live.outcome import recover as recover_live

    return recover_live(spec, folder)
