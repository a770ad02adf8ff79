"""Output of comparisons and plans to the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fairbench.results.comparison import SchedulerResults


def print_comparison(cells: Sequence[SchedulerResults], path: Path) -> None:
    """Print the comparison of a sweep for people, on stdout."""
    from fairbench.cli.output import look
    from fairbench.report.comparison_table import comparison_text

    colour, width = look()
    typer.echo(comparison_text(cells, colour=colour, width=width), nl=False)
    typer.echo(f"files  {path}")


def print_plan(answer: Mapping[str, Any], path: Path, *, as_json: bool) -> None:
    """Print the answer of a plan on stdout, for people or programs.

    Args:
        answer: Answer of the plan, as in ``answer.json``.
        path: Directory in which the answer is stored.
        as_json: Whether JSON is printed, instead of a table.
    """
    from fairbench.capacity.carry_out import ANSWER
    from fairbench.capacity.table import answer_text
    from fairbench.cli.output import look, print_json

    if as_json:
        print_json(answer)
        typer.echo(f"fairbench: saved to {path}", err=True)
        return
    colour, width = look()
    typer.echo(answer_text(answer, colour=colour, width=width), nl=False)
    typer.echo(f"files  {path / ANSWER}")
