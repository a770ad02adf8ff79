"""The outcome of a gate for people: point by point, at most ``MAX_WIDTH`` columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.gate.changes import Change, of_the_cluster
from fairbench.gate.judge import Verdict
from fairbench.gate.outcome import Outcome, counted
from fairbench.report.table import MAX_WIDTH, printed

STYLES = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.CANNOT_TELL: "yellow"}
HEADINGS = ("baseline", "current", "change")


def outcome_text(outcome: Outcome, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the outcome as lines of text, with or without ANSI colours."""
    return printed(_render(outcome), colour=colour, width=width)


def _render(outcome: Outcome) -> RenderableType:
    blocks: list[RenderableType] = [Text(outcome.basis, style="bold")]
    blocks += [Text(cause, style="yellow") for cause in outcome.causes]
    blocks += [Text(), _verdicts(outcome)]
    for point, found in outcome.changes.items():
        blocks += [Text(), Text(f"changed, {point}", style="bold"), changes_table(found)]
    return Group(*blocks, Text(), Text(outcome.summary()))


def _verdicts(outcome: Outcome) -> Table:
    table = _table("", *HEADINGS, "")
    for point, rows in groupby(outcome.rows, lambda row: row.point):
        table.add_row(Text(point, style="bold"))
        for row in rows:
            texts = (f"  {row.clause}", row.before, row.after, row.change)
            table.add_row(*map(Text, texts), Text(row.verdict, style=STYLES[row.verdict]))
            if row.reason:
                table.add_row(Text(f"    {row.reason}", style="dim"))
    return table


def changes_table(found: Sequence[Change]) -> RenderableType:
    """Return a table of the changes at one point.

    If cluster-wide metrics changed, changes of single clients are only counted.
    """
    shown = of_the_cluster(found)
    table = _table("", *HEADINGS)
    for change in shown:
        texts = (change.metric, *change.texts, change.difference)
        table.add_row(*map(Text, texts))
    if rest := len(found) - len(shown):
        return Group(table, Text(f"and {counted(rest, 'value')} of single clients"))
    return table


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    return table
