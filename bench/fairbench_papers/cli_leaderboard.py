"""``fairbench leaderboard``: rank the schedulers of stored sweeps in one table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench import report as reporting
from fairbench.cli.options import DEFAULT_RESULT_DIR
from fairbench.cli.output import check_report, print_json, show

DEFAULT_STORE = DEFAULT_RESULT_DIR / "leaderboard"


class BoardFormat(StrEnum):
    """The output formats of the leaderboard."""

    TABLE = "table"
    MARKDOWN = "md"
    CSV = "csv"
    JSON = "json"


def leaderboard(
    stores: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR ...|FILE.csv ...]",
            help="Directories of sweeps, combined into one table, or CSV files written by "
            f"--format csv. [default: {DEFAULT_STORE}]",
        ),
    ] = None,
    sort: Annotated[
        str | None,
        Option(
            metavar="METRIC",
            help="Metric by which the table is sorted. [default: min_share_of_best]",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            metavar="ROW",
            help="Scheduler with which the other schedulers of the table are compared. [default: "
            "the scheduler in the first row]",
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        Option(
            metavar="PLACE",
            help="Configuration to show, as workload and scenario, such as `chat s1`; may be "
            "repeated. [default: all]",
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        Option(metavar="ROW", help="Scheduler to show; may be repeated. [default: all]"),
    ] = None,
    output: Annotated[
        BoardFormat,
        Option(
            "--format",
            help="Output format. `csv` prints one line per run, in a form that `fairbench "
            "leaderboard` can read.",
        ),
    ] = BoardFormat.TABLE,
    report: Annotated[
        Path | None,
        Option(
            "--report",
            metavar="FILE",
            help="Also write a page with a chart of the schedulers' ranks to FILE (.html or .md).",
        ),
    ] = None,
) -> None:
    """Rank the schedulers of stored sweeps by significant differences.

    The command ranks stored runs and makes no new runs. A scheduler that was not run in every
    configuration is listed without a rank.
    """
    from fairbench_papers.board import board_json, chosen, lines_csv, make_board, read_stored
    from fairbench_papers.board_report import board_markdown, board_page, board_text

    check_report(report)
    stored = read_stored(stores or [DEFAULT_STORE])
    lines = chosen(stored.lines, place or (), row or ())
    if output is BoardFormat.CSV:
        typer.echo(lines_csv(lines), nl=False)
        if report is None:
            return
    board = make_board(lines, stored.missing, sort=sort, baseline=baseline)
    if report is not None:
        reporting.write_page(board_page(board), report)
    if output is BoardFormat.JSON:
        print_json(board_json(board))
    elif output is BoardFormat.MARKDOWN:
        typer.echo(board_markdown(board), nl=False)
    elif output is BoardFormat.TABLE:
        show(board_text, board)
