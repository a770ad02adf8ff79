"""``fairbench recover``: a run that was killed, made into a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.results.run_result import RunResult


def recover(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run that was killed.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object, nothing else.")
    ] = False,
) -> None:
    """Save what had finished of a run that was killed.

    Prints its summary. The run is marked incomplete. What was under way when it was killed is not
    in it.
    """
    import shutil

    from fairbench.cli.output import print_json, print_summary
    from fairbench.config.resolve import read_spec
    from fairbench.errors import UsageError
    from fairbench.live.run_folder import FOLDER, run_folder
    from fairbench.results.manifest import Stopwatch, build_manifest
    from fairbench.results.store import EXPERIMENT, MANIFEST, write_run
    from fairbench.sim.records.spool import FOLDER as SIMULATED

    if (run_dir / MANIFEST).exists():
        raise UsageError(f"{run_dir}: was saved already, see `fairbench show`")
    name = next((name for name in (FOLDER, SIMULATED) if (run_dir / name).is_dir()), None)
    if name is None:
        raise UsageError(f"{run_dir}: is not the directory of a run that was killed")
    spec = read_spec(run_dir / EXPERIMENT)
    watch = Stopwatch.start()
    with run_folder(run_dir, name) as folder:
        result = _recovered(spec, folder)
        manifest = build_manifest(spec, complete=False, watch=watch) | {"recovered": True}
        write_run(run_dir, spec, result.tables(), result.summary, manifest)
        if name == SIMULATED:  # all of it is in the tables now
            shutil.rmtree(folder)
    if as_json:
        print_json(result.summary)
    else:
        print_summary(result.summary, run_dir, complete=False)


def _recovered(spec: ExperimentSpec, folder: Path) -> RunResult:
    if spec.backend is None:
        from fairbench.sim.recovery import recover as simulated

        return simulated(spec, folder)
    from fairbench.live.requirements import require_live_extra

    require_live_extra()
    from fairbench.live.outcome import recover as driven

    return driven(spec, folder)
