"""``fairbench show``: the summary of a stored run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbench.cli.bench_file import OutputDetails, OutputFile, add_run_line
from fairbench.cli.output import print_json, print_summary
from fairbench.errors import DataError
from fairbench.files.reader import MissingFile
from fairbench.live.run_folder import FOLDER
from fairbench.results.intervals import INTERVALS_FILE
from fairbench.results.store import SUMMARY, read_run
from fairbench.results.summary_schema import check_summary
from fairbench.sim.records.spool import FOLDER as SIMULATED


def show(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Directory of a run.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object, nothing else.")
    ] = False,
    output_file: OutputFile = None,
    output_details: OutputDetails = False,
) -> None:
    """Print the summary of a stored run again, from its files."""
    try:
        stored = read_run(run_dir)
    except DataError as error:
        hint = _hint(run_dir) if isinstance(error.__context__, MissingFile) else ""
        if not hint:
            raise
        raise DataError(f"{run_dir}: {hint}") from None
    if not as_json:
        check_summary(stored.summary, run_dir / SUMMARY)
    add_run_line(output_file, stored, details=output_details)
    if as_json:
        print_json(stored.summary)
    else:
        print_summary(stored.summary, run_dir, complete=bool(stored.manifest.get("complete")))


def _hint(folder: Path) -> str:
    """What a directory without a manifest is, and what to do with it; "" if it is not ours."""
    if (folder / FOLDER).is_dir() or (folder / SIMULATED).is_dir():
        return f"still running, or killed: `fairbench recover {folder}` saves its records"
    if (folder / INTERVALS_FILE).exists():
        return f"holds several runs: show one of them, or see `fairbench report {folder}`"
    return ""
