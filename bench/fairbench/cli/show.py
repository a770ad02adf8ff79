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
    output_file: Annotated[
        Path | None,
        typer.Option(help="Also add a JSON line in sglang.bench_serving's shape to this file."),
    ] = None,
    output_details: Annotated[
        bool, typer.Option("--output-details", help="With lists of all requests in that line.")
    ] = False,
) -> None:
    """Print the summary of a stored run again, from its files."""
    from fairbench.cli.output import add_bench_line, print_json, print_summary
    from fairbench.errors import DataError
    from fairbench.live.run_folder import FOLDER
    from fairbench.report.run_tables import read_tables
    from fairbench.report.shape import check_summary
    from fairbench.report.store import read_run
    from fairbench.sim.spool import FOLDER as SIMULATED

    try:
        stored = read_run(run_dir)
    except DataError as error:
        folders = (run_dir / FOLDER, run_dir / SIMULATED)
        if isinstance(error.__context__, FileNotFoundError) and any(map(Path.is_dir, folders)):
            hint = f"`fairbench recover {run_dir}` saves its records"
            raise DataError(f"{run_dir}: still running, or killed: {hint}") from None
        raise
    if not as_json:
        check_summary(stored.summary, run_dir / "summary.json")
    add_bench_line(
        output_file, stored.summary, lambda: read_tables(stored).requests, details=output_details
    )
    if as_json:
        print_json(stored.summary)
    else:
        print_summary(stored.summary, run_dir, complete=bool(stored.manifest.get("complete")))
