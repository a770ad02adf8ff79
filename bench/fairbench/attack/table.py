"""The worst attacks as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fairbench.report.table import MAX_WIDTH, plain_table, printed

KEYS = ("kept", "finished", "gain", "hits")
EXPLAINED = (
    "All columns are relative to the run in which the attacker is honest. kept: fraction "
    "of the victims' due service that was served; finished: their finished programs; "
    "gain: useful service of the attacker; hits: cache hit rate of the victims; P95: latency "
    "of the victims (> is a lower bound). 95% intervals over seeds."
)


def attack_text(
    title: str, rows: Sequence[Mapping[str, Any]], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return a table with one row per ``about`` and its harm (``measure.combined``).

    Args:
        title: Text above the table.
        rows: Attacks, each with its ``about`` and the keys of ``measure.combined``.
        colour: Whether the text has ANSI colours.
        width: Most columns of a line.
    """
    table = plain_table("", *KEYS, "P95")
    for row in rows:
        p95 = (">" if row["more"] and row["p95"] else "") + interval_text(row["p95"])
        table.add_row(*map(Text, (_about(row), *(interval_text(row[key]) for key in KEYS), p95)))
    blocks: list[RenderableType] = [
        Text(title, style="bold"),
        Text(),
        table,
        Text(),
        Text(EXPLAINED, style="dim"),
    ]
    return printed(Group(*blocks), colour=colour, width=width)


def _about(row: Mapping[str, Any]) -> str:
    """Describe the attack, with the multiple of programs it sends if that is not 1."""
    times = f"{row.get('programs', 1.0):.2f}"
    return row["about"] if times == "1.00" else f"{row['about']}, {times} times the programs"


def processors_text(hours: float) -> str:
    """Return processor time as text: in hours, or in seconds below six minutes."""
    return f"{hours:.2f} hours" if hours >= 0.1 else f"{3600 * hours:.0f} s"


def interval_text(value: Mapping[str, float | None] | None) -> str:
    """Return a mean as text, followed by its interval if known."""
    if value is None:
        return "-"
    if value["low"] is None or value["high"] is None:
        return f"{value['mean']:.2f}"
    return f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
