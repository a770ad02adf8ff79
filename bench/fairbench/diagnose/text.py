"""A diagnosis as one page of text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.diagnose.diagnosis import Diagnosis, others_waits
from fairbench.diagnose.sentences import (
    basis_lines,
    change_lines,
    flood_lines,
    harm_lines,
    log_line,
    missing_lines,
    replica_line,
    title,
)
from fairbench.report.numbers import percent, seconds, whole
from fairbench.report.table import plain_table, printed

WIDTH = 80


def diagnosis_text(found: Diagnosis, *, colour: bool = False, width: int = WIDTH) -> str:
    """Return the diagnosis as lines of at most ``width`` columns.

    Args:
        found: Diagnosis to show.
        colour: Whether the text has ANSI colours.
        width: Most columns of a line, up to ``WIDTH``.
    """
    return printed(_render(found), colour=colour, width=min(width, WIDTH))


def _render(found: Diagnosis) -> RenderableType:
    blocks: list[RenderableType] = [Text(title(found), style="bold"), Text(log_line(found)), Text()]
    answers = [*flood_lines(found), *harm_lines(found), *change_lines(found)]
    answers += [replica_line(found)] if found.plan else []
    blocks += [_list(answers), Text()]
    blocks += [_table(found), Text()] if found.replays else []
    blocks += [Text(line, style="dim") for line in basis_lines(found)]
    return Group(*blocks, *(Text(line, style="bold") for line in missing_lines(found)))


def _list(lines: list[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        table.add_row("-", Text(line))
    return table


def headings(found: Diagnosis, *, whole: bool = False) -> list[str]:
    """Return the headings of the table of replays; ``whole`` ones are clear on their own."""
    who = "others" if found.floods else "all"
    own = [f"{name_of_heavy(found)} P50 s"] if found.floods else []
    p95 = f"{who} TTFT P95 s" if whole else "P95 s"
    return ["replay under", f"{who} TTFT P50 s", p95, *own, "min share 60 s", "tok/s"]


def name_of_heavy(found: Diagnosis) -> str:
    """Return the heading of the heavy clients' column."""
    return found.heavy[0] if len(found.heavy) == 1 else "heavy clients"


def rows(found: Diagnosis) -> list[list[str]]:
    """Return a row for each replay: waits, then fairness and throughput."""
    table = []
    for run in found.replays:
        waits = others_waits(run.traffic, found)
        own = [seconds(waits["heavy_p50_s"])] if found.floods else []
        ranks = [seconds(waits["others_p50_s"]), seconds(waits["others_p95_s"])]
        share = percent(run.summary.get("min_share_60s"))
        table.append([run.scheduler, *ranks, *own, share, whole(run.summary["service_rate_tok_s"])])
    return table


def _table(found: Diagnosis) -> Table:
    table = plain_table(*headings(found))
    for row in rows(found):
        table.add_row(*row)
    return table
