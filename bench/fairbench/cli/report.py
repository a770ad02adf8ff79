"""``fairbench report``: a stored run, its repeats, or a sweep as one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairbench.cli.report_file import check_report, write_report
from fairbench.errors import DataError

if TYPE_CHECKING:
    from fairbench.report.pages.page import Page


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `run` or `sweep` has made.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-file", "-o", help="FILE.html or FILE.md. [default: report.html in DIR]"
        ),
    ] = None,
) -> None:
    """Write a page on a run, its repeats, or a sweep.

    It has who got what, figures, bounds, warnings and how to run it again, in one file that needs
    no network and no script.
    """
    path = output or directory / "report.html"
    check_report(path, "--output-file")
    write_report(_page(directory), path, "--output-file")
    typer.echo(f"report  {path}")


def _page(directory: Path) -> Page:
    """The page of whatever the directory is of. Raises DataError if that is nothing of ours."""
    from fairbench.capacity.page import is_plan, plan_page
    from fairbench.report.pages.repeat_page import repeat_page
    from fairbench.report.pages.run_page import run_page
    from fairbench.report.pages.sweep_page import sweep_page
    from fairbench.results.intervals import INTERVALS_FILE
    from fairbench.results.store import MANIFEST, read_run
    from fairbench.results.sweep_store import SWEEP_FILE

    if (directory / MANIFEST).exists():
        return run_page(read_run(directory))
    if (directory / INTERVALS_FILE).exists():
        return repeat_page(directory)
    if is_plan(directory):
        return plan_page(directory)
    if (directory / SWEEP_FILE).exists():
        return sweep_page(directory)
    raise DataError(f"{directory}: is neither the directory of a run nor that of a sweep")
