"""Output of summaries, comparisons, pages, and lines in sglang.bench_serving's format."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from errno import EISDIR
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fairbench.cli.flags import option
from fairbench.config.flags.flag import OUTPUT
from fairbench.errors import UsageError, writing

if TYPE_CHECKING:
    from fairbench.execute.sweeps import SweepOutcome
    from fairbench.metrics.records import Requests
    from fairbench.report.pages.page import Page
    from fairbench.results.comparison import SchedulerResults

MIN_WIDTH = 60


def print_summary(
    summary: Mapping[str, Any], path: Path, *, complete: bool, explain: bool = False
) -> None:
    """Print the summary for people on stdout, as plain text unless stdout is a terminal.

    ``explain`` adds sentences about its numbers.
    """
    from fairbench.report.run_table import summary_text

    colour, width = look()
    text = summary_text(summary, path=path, complete=complete, colour=colour, width=width)
    if explain:
        from fairbench.report.explained import explained_text

        text += explained_text(summary, width)
    typer.echo(text, nl=False)


def check_explain(explain: bool, *, single: bool, as_json: bool) -> None:
    """Raise UsageError if ``--explain`` is given, but no summary of a single run is printed."""
    if explain and as_json:
        raise UsageError("--explain cannot be combined with --json, which prints no text")
    if explain and not single:
        raise UsageError("--explain needs a single run")


def look() -> tuple[bool, int]:
    """Return whether tables on stdout have colours, and their width in columns.

    The width is that of the terminal; the variable ``COLUMNS`` overrides it, in a pipe too.
    """
    from fairbench.report.table import MAX_WIDTH

    terminal = sys.stdout.isatty()
    chosen = terminal or os.environ.get("COLUMNS", "").isdigit()
    columns = shutil.get_terminal_size((MAX_WIDTH, 24)).columns if chosen else MAX_WIDTH
    return terminal and "NO_COLOR" not in os.environ, max(MIN_WIDTH, min(columns, MAX_WIDTH))


def show(made: Callable[..., str], *args: Any) -> None:
    """Print the text that a function makes of these arguments, with the ``look`` of stdout."""
    colour, width = look()
    typer.echo(made(*args, colour=colour, width=width), nl=False)


def print_json(summary: Mapping[str, Any], saved: Path | None = None) -> None:
    """Print a JSON object on stdout, with null for undefined; print the directory on stderr."""
    typer.echo(json.dumps(summary, allow_nan=False))
    if saved is not None:
        typer.echo(f"fairbench: saved to {saved}", err=True)


def print_comparison(cells: Sequence[SchedulerResults], path: Path) -> None:
    """Print the comparison of a sweep for people, on stdout."""
    from fairbench.report.comparison_table import comparison_text

    show(comparison_text, cells)
    typer.echo(f"files  {path}")


def print_outcome(outcome: SweepOutcome) -> None:
    """Print the failures of a sweep and the remarks on its runs on stderr."""
    for failure in outcome.failures:
        typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
    for remark in outcome.remarks():
        typer.echo(f"fairbench: {remark}", err=True)


def print_plan(answer: Mapping[str, Any], path: Path, *, as_json: bool) -> None:
    """Print the answer of a plan on stdout, for people or programs."""
    from fairbench.capacity.carry_out import ANSWER
    from fairbench.capacity.table import answer_text

    if as_json:
        print_json(answer, path)
        return
    show(answer_text, answer)
    typer.echo(f"files  {path / ANSWER}")


def check_report(path: Path | None, flag: str = "--report") -> None:
    """Raise UsageError for a name that does not end in .html or .md."""
    if path is not None:
        from fairbench.report.pages.written import check_ending

        check_ending(path, flag)


def check_writable(path: Path | None, flag: str = "--report") -> None:
    """Raise UsageError for a page that cannot be written. Called before a long computation."""
    if path is None:
        return
    check_report(path, flag)
    with writing(path, flag):
        if path.is_dir():
            raise IsADirectoryError(EISDIR, "Is a directory")
        with TemporaryFile(dir=path.parent):
            pass


def write_report(page: Page, path: Path, flag: str = "--report") -> None:
    """Write a page in the format of the file's suffix. Raises UsageError on failure."""
    from fairbench.report.pages.written import write_page

    write_page(page, path, flag)


OutputFile = Annotated[
    Path | None,
    option(
        OUTPUT,
        "File to which a JSON line with the summary is appended, in the format of "
        "sglang.bench_serving.",
    ),
]
OutputDetails = Annotated[
    bool,
    option(
        OUTPUT,
        "Add lists with the values of all requests to the line of --output-file.",
        "--output-details",
    ),
]

OnSaved: TypeAlias = Callable[[Path, Mapping[str, Any]], None]
"""Called with the directory and the summary of each run that was saved."""


def run_lines(path: Path | None, *, details: bool) -> OnSaved:
    """Return a callback that appends a run's line to the file, if a path is given.

    Raises UsageError before anything runs, as ``add_bench_line`` would.
    """
    _check_details(path, details)
    if path is not None:
        from fairbench.report.bench_line import check_appendable

        check_appendable(path)
    return lambda run, summary: add_run_line(path, run, summary, details=details)


def add_run_line(
    path: Path | None, run: Path, summary: Mapping[str, Any], *, details: bool
) -> None:
    """Call ``add_bench_line`` for a stored run. Raises DataError if its requests are unreadable."""

    def requests() -> Requests:
        from fairbench.results.run_tables import read_tables
        from fairbench.results.store import read_run

        return read_tables(read_run(run)).requests

    if path is not None or details:
        add_bench_line(path, summary, requests, details=details)


def add_bench_line(
    path: Path | None,
    summary: Mapping[str, Any],
    requests: Callable[[], Requests],
    *,
    details: bool,
) -> None:
    """Append the summary in sglang.bench_serving's format to a file, if a path is given.

    With ``details``, add its requests. Raises UsageError if the file cannot be written, or if
    details are asked for without one.
    """
    from fairbench.report.bench_line import append_line, bench_details, bench_line

    _check_details(path, details)
    if path is not None:
        append_line(path, bench_line(summary) | (bench_details(requests()) if details else {}))


def _check_details(path: Path | None, details: bool) -> None:
    if details and path is None:
        raise UsageError("--output-details needs --output-file")
