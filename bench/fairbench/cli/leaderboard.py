"""``fairbench leaderboard``: the schedulers of stored sweeps in one ranked table."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from fairbench.cli.flags import DEFAULT_RESULT_DIR

if TYPE_CHECKING:
    from fairbench.results.board.board import Board

DEFAULT_STORE = DEFAULT_RESULT_DIR / "leaderboard"


class Format(StrEnum):
    """The output format of the table."""

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
        str | None, Option(metavar="METRIC", help="Metric to sort by. [default: min_share_of_best]")
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            metavar="ROW", help="Row with which the others are compared. [default: the first row]"
        ),
    ] = None,
    place: Annotated[
        list[str] | None,
        Option(
            metavar="PLACE",
            help="Configuration to show, such as `chat s1`; may be repeated. [default: all]",
        ),
    ] = None,
    row: Annotated[
        list[str] | None,
        Option(metavar="ROW", help="Scheduler to show; may be repeated. [default: all]"),
    ] = None,
    output: Annotated[
        Format,
        Option(
            "--format",
            help="Output format. `csv` prints a line per run, which `leaderboard` reads again.",
        ),
    ] = Format.TABLE,
    report: Annotated[
        Path | None,
        Option(
            "--report",
            metavar="FILE",
            help="Also write a page with a picture of the ranks and their cost: FILE ends in "
            ".html or .md.",
        ),
    ] = None,
) -> None:
    """Rank the schedulers of stored sweeps by what is significant.

    Nothing is run. A scheduler that lacks a run in some configuration is listed without a rank.
    """
    from fairbench.cli.output import check_report, write_report
    from fairbench.results.board.board import chosen, make_board
    from fairbench.results.board.stored import lines_csv, read_stored

    check_report(report)
    stored = read_stored(stores or [DEFAULT_STORE])
    lines = chosen(stored.lines, place or (), row or ())
    if output is Format.CSV:
        typer.echo(lines_csv(lines), nl=False)
        if report is None:
            return
    board = make_board(lines, stored.missing, sort=sort, baseline=baseline)
    if report is not None:
        from fairbench.report.board_page import board_page

        write_report(board_page(board), report)
    if output is not Format.CSV:
        _print(board, output)


def _print(board: Board, output: Format) -> None:
    from fairbench.cli.output import print_json, show
    from fairbench.report.board_table import board_markdown, board_text
    from fairbench.results.board.board import board_json

    if output is Format.JSON:
        print_json(board_json(board))
    elif output is Format.MARKDOWN:
        typer.echo(board_markdown(board), nl=False)
    else:
        show(board_text, board)
