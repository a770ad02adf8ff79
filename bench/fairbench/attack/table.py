"""The worst behaviours as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.table import MAX_WIDTH, printed

KEYS = ("kept", "finished", "gain", "hits")
EXPLAINED = (
    "kept: what victims were served of what was due, against the honest twin; finished: their "
    "programs that were over, likewise; gain: the attacker's useful service against its own as the "
    "twin; hits: the victims' cache hit rate, likewise; P95: the victims' latency, > where it is "
    "at least that. 95% intervals over seeds."
)


def attack_text(
    title: str, rows: Sequence[Mapping[str, Any]], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return a table with one row per ``about`` and its harm (``measure.combined``)."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("", *KEYS, "P95"):
        table.add_column(heading, justify="right" if heading else "left", overflow="fold")
    for row in rows:
        p95 = (">" if row["more"] and row["p95"] else "") + interval_text(row["p95"])
        measures = (interval_text(row.get(key)) for key in KEYS)
        table.add_row(*map(Text, (_about(row), *measures, p95)))
    blocks: list[RenderableType] = [
        Text(title, style="bold"),
        Text(),
        table,
        Text(),
        Text(EXPLAINED, style="dim"),
    ]
    return printed(Group(*blocks), colour=colour, width=width)


def _about(row: Mapping[str, Any]) -> str:
    """Describe the attack, and how many times its twin's programs it sends if not as many."""
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
