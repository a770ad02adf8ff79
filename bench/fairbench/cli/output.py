"""Output of commands: summaries, comparisons, pages, and lines in sglang.bench_serving's format."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from fairbench import report, results
from fairbench.cli.options import option
from fairbench.config.parse_flags import OUTPUT
from fairbench.errors import UsageError

if TYPE_CHECKING:
    from fairbench.execute.repeats import SweepOutcome
    from fairbench.metrics.records import Requests
    from fairbench.results.comparison import SchedulerResults
    from fairbench.results.references import Reference

MIN_WIDTH = 60


def print_summary(
    summary: Mapping[str, Any],
    path: Path,
    *,
    complete: bool,
    explain: bool = False,
    reference: Reference | None = None,
) -> None:
    """Print a run's summary as text on stdout, with colours on a terminal.

    With ``explain``, sentences below the summary explain its numbers. With ``reference``, the
    summary's first line also states the shares under the reference scheduler.
    """
    colour, width = terminal_look()
    text = report.summary_text(
        summary, path=path, complete=complete, colour=colour, width=width, reference=reference
    )
    if explain:
        text += report.explained_text(summary, width)
    typer.echo(text, nl=False)


def check_explain(explain: bool, *, single: bool, as_json: bool) -> None:
    """Raise UsageError if ``--explain`` is given, but no summary of a single run is printed."""
    if explain and as_json:
        raise UsageError(
            "--explain cannot be combined with --json: the JSON output contains no explanations"
        )
    if explain and not single:
        raise UsageError("--explain needs a single run, not a sweep or several repeats")


def terminal_look() -> tuple[bool, int]:
    """Return whether tables on stdout have colours, and the width of tables in characters.

    The environment variable ``COLUMNS`` overrides the terminal's width, and sets the width of
    output to a pipe.
    """
    columns = min(chosen_width() or report.MAX_WIDTH, report.MAX_WIDTH)
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ, max(MIN_WIDTH, columns)


def chosen_width() -> int | None:
    """Return ``COLUMNS`` or the terminal's width, or None in a pipe without ``COLUMNS``."""
    if not (sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()):
        return None
    return max(MIN_WIDTH, shutil.get_terminal_size((100, 24)).columns)


def show(made: Callable[..., str], *args: Any) -> None:
    """Make a text with ``made`` for the colours and width of stdout, and print the text."""
    colour, width = terminal_look()
    typer.echo(made(*args, colour=colour, width=width), nl=False)


def print_json(summary: Mapping[str, Any], saved: Path | None = None) -> None:
    """Print a summary as JSON to stdout; print the path ``saved``, if given, to stderr."""
    typer.echo(json.dumps(summary, allow_nan=False))
    if saved is not None:
        typer.echo(f"fairbench: saved to {saved}", err=True)


def print_comparison(cells: Sequence[SchedulerResults], path: Path) -> None:
    """Print the comparison of a sweep as text on stdout."""
    show(report.comparison_text, cells)
    typer.echo(f"files  {path}")


def print_outcome(outcome: SweepOutcome) -> None:
    """Print the failed experiments of a sweep, and remarks on its runs, on stderr."""
    for failure in outcome.failures:
        typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
    for remark in outcome.remarks():
        typer.echo(f"fairbench: {remark}", err=True)


def check_report(path: Path | None, flag: str = "--report") -> None:
    """Raise UsageError if the file name of a report page does not end in .html or .md."""
    if path is not None:
        report.check_ending(path, flag)


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
"""A function that is called with the directory and the summary of each saved run."""


def run_lines(path: Path | None, *, details: bool) -> OnSaved:
    """Return a callback that appends a line for each saved run to the file ``path``, if given.

    Raises UsageError if the file cannot be written, before any run starts.
    """
    _check_details(path, details)
    if path is not None:
        report.check_appendable(path)
    return lambda run, summary: add_run_line(path, run, summary, details=details)


def add_run_line(
    path: Path | None, run: Path, summary: Mapping[str, Any], *, details: bool
) -> None:
    """Append one line about a stored run, in sglang.bench_serving's format, to a file.

    Raises DataError if the stored requests of the run cannot be read.
    """

    def requests() -> Requests:
        return results.read_tables(results.read_run(run)).requests

    if path is not None or details:
        add_bench_line(path, summary, requests, details=details)


def add_bench_line(
    path: Path | None,
    summary: Mapping[str, Any],
    requests: Callable[[], Requests],
    *,
    details: bool,
) -> None:
    """Append a summary in sglang.bench_serving's format to the file ``path``, if given.

    If ``details`` is True, the summary contains the values of each request. Raises UsageError if
    the file cannot be written, or if ``details`` is given without a file.
    """
    from fairbench.report.bench_line import append_line, bench_details, bench_line

    _check_details(path, details)
    if path is not None:
        append_line(path, bench_line(summary) | (bench_details(requests()) if details else {}))


def _check_details(path: Path | None, details: bool) -> None:
    if details and path is None:
        raise UsageError("--output-details needs --output-file")
