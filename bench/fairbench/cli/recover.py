"""``fairbench recover``: a live run that was killed, made into a stored run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def recover(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="Directory of a live run that was killed.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object, nothing else.")
    ] = False,
) -> None:
    """Save what had finished of a live run that was killed, and print its summary.

    The run is marked incomplete. What was under way when it was killed is not in it.
    """
    from fairbench.cli.output import print_json, print_summary
    from fairbench.config.resolve import read_experiment, resolve
    from fairbench.errors import UsageError
    from fairbench.live.extra import require_live_extra
    from fairbench.live.run_folder import FOLDER, run_folder
    from fairbench.report.manifest import Stopwatch, build_manifest
    from fairbench.report.store import MANIFEST, write_run

    require_live_extra()
    from fairbench.live.outcome import recover as recovered

    if (run_dir / MANIFEST).exists():
        raise UsageError(f"{run_dir}: was saved already, see `fairbench show`")
    if not (run_dir / FOLDER).is_dir():
        raise UsageError(f"{run_dir}: is not the directory of a live run")
    experiment = run_dir / "experiment.toml"
    spec = resolve({}, {}, read_experiment(experiment), path=experiment)
    watch = Stopwatch.start()
    with run_folder(run_dir) as folder:
        result = recovered(spec, folder)
        manifest = build_manifest(spec, complete=False, watch=watch) | {"recovered": True}
        write_run(run_dir, spec, result.tables(), result.summary, manifest)
    if as_json:
        print_json(result.summary)
    else:
        print_summary(result.summary, run_dir, complete=False)
