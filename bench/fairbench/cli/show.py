"""``fairbench show``: the summary of a stored run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def show(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object, nothing else.")
    ] = False,
) -> None:
    """Print the summary of a stored run again, from its files."""
    from fairbench.cli.output import print_json, print_summary
    from fairbench.errors import DataError
    from fairbench.live.run_folder import FOLDER
    from fairbench.report.shape import check_summary
    from fairbench.report.store import read_run

    try:
        stored = read_run(run_dir)
    except DataError as error:
        if isinstance(error.__context__, FileNotFoundError) and (run_dir / FOLDER).is_dir():
            hint = f"`fairbench recover {run_dir}` saves its records"
            raise DataError(f"{run_dir}: still running, or killed: {hint}") from None
        raise
    if as_json:
        print_json(stored.summary)
    else:
        check_summary(stored.summary, run_dir / "summary.json")
        print_summary(stored.summary, run_dir, complete=bool(stored.manifest.get("complete")))
