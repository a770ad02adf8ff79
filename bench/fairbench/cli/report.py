"""``fairbench report``: write a page for a directory of runs, a log or a leaderboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from fairbench import report as reporting
from fairbench import results
from fairbench.api.logs import log_tools
from fairbench.cli.options import log_params, takes
from fairbench.cli.output import check_report
from fairbench.config.flags import LogFlags
from fairbench.doors import PAGE_GROUP, registered, through
from fairbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from fairbench.report.pages.page import Page


@takes(LogFlags)
def report(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE",
            help="Directory of a run, a sweep or a plan; an access log in a format that "
            "`run --trace` reads; or a CSV file written by `leaderboard --format csv`.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-file",
            "-o",
            help="Output file, which ends in .html or .md. [default: report.html in the given "
            "directory, or NAME-report.html for a log file NAME]",
        ),
    ] = None,
    **log_flags: Unpack[LogFlags],
) -> None:
    """Write a page for a run, sweep, plan, leaderboard or log.

    The page is a single file that needs no network and no scripts.
    """
    is_file = directory.is_file()
    usual = f"{directory.name.partition('.')[0]}-report.html" if is_file else "report.html"
    path = output or (directory.parent if is_file else directory) / usual
    check_report(path, "--output-file")
    if is_file and not log_flags and (found := _registered_page(directory)):
        page = found
    elif is_file:
        page = log_tools().log_page(log_params(str(directory), log_flags))
    elif log_flags:
        raise UsageError(
            f"{directory} is a directory: --map and the --trace options can be given only "
            "with the file of an access log"
        )
    else:
        page = _page(directory)
    reporting.write_page(page, path, "--output-file")
    typer.echo(f"report  {path}")


def _registered_page(path: Path) -> Page | None:
    """Return the page that an installed package (``fairbench.pages``) makes of a file, if any."""
    found: Iterator[Page | None] = (
        through(PAGE_GROUP, name)(path) for name in registered(PAGE_GROUP)
    )
    return next(filter(None, found), None)


def _page(directory: Path) -> Page:
    """Return the report page of a run, a sweep or a plan.

    Raises DataError if the directory is neither a run nor a sweep nor a plan.
    """
    if (directory / results.MANIFEST).exists():
        return reporting.run_page(results.read_run(directory))
    if (directory / results.INTERVALS_FILE).exists():
        return reporting.repeat_page(directory)
    if (directory / results.QUESTION).is_file():
        return log_tools().plan_page(directory)
    if (directory / results.SWEEP_FILE).exists():
        return reporting.sweep_page(directory)
    raise DataError(
        f"{directory}: must be an access log, or the directory of a run, a sweep or a plan"
    )
