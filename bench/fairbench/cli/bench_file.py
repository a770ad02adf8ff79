"""``--output-file``: summaries as JSON lines in the format of sglang.bench_serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from fairbench.cli.flags import option
from fairbench.config.flags.flag import OUTPUT
from fairbench.errors import UsageError

if TYPE_CHECKING:
    from fairbench.metrics.records import Requests

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
    """Call ``add_bench_line`` for a stored run. Raises DataError if its requests are unreadable.

    Args:
        path: File to append to, or None.
        run: Directory of the stored run.
        summary: Summary of the run.
        details: Whether the line also holds the values of all requests.
    """

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

    With ``details`` also its requests. Raises UsageError if the file cannot be written, or if
    details are asked for without one.
    """
    from fairbench.report.bench_line import append_line, bench_details, bench_line

    _check_details(path, details)
    if path is not None:
        append_line(path, bench_line(summary) | (bench_details(requests()) if details else {}))


def _check_details(path: Path | None, details: bool) -> None:
    if details and path is None:
        raise UsageError("--output-details needs --output-file")
