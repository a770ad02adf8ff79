"""A comparison for people: one row per cell, place by place, the best and the worst marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.report.marks import BEST, WORST, Interval, marks_of
from fairbench.report.numbers import UNDEFINED, index, less_than, more_than, number
from fairbench.report.table import MAX_WIDTH, basis, printed
from fairbench.results.comparison import Cell

LABEL_WIDTH = 30  # of a scheduler with the parameters that tell it from others
LIMITED = "~"
STYLES = {BEST: "green", WORST: "red"}
SHARING = (
    "Sharing: latency of the worst-off well-behaved client over its latency alone on 1/n of the "
    "cluster; at most 1: no reason to leave. "
)
LEGEND = (
    f"{BEST} best and {WORST} worst of a place. {{sharing}}Worst share: the least that a client "
    "got of its fair share of the best total delivered there."
)
DEMAND_LIMITED = (
    f"{LIMITED} demand-limited: queues were empty for part of the window under some scheduler, so "
    "service rates compare loads."
)


class Column(NamedTuple):
    """A metric: its key, heading, how it is written, and whether more of it is better."""

    key: str
    heading: str
    write: Callable[[float | None], str]
    more_is_better: bool


def _whole_percent(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.0%}"


COLUMNS = (
    Column("sharing_incentive_p50", "sharing\nP50", number, False),
    Column("sharing_incentive_p99", "sharing\nP99", number, False),
    Column("service_rate_tok_s", "service\ntok/s", number, True),
    Column("min_entitlement_best_ratio", "worst\nshare", _whole_percent, True),
    Column("jain_index_actual", "Jain,\nactual", index, True),
    Column("victim_p50_s", "P50\ns", number, False),
    Column("victim_p99_s", "P99\ns", number, False),
    Column("time_to_90pct_s", "90% done\ns", number, False),
)
# What a table goes without where it would be too wide, first to last.
EXPENDABLE = ("time_to_90pct_s", "jain_index_actual", "victim_p50_s", "sharing_incentive_p50")


def as_text(cells: Sequence[Cell], *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """The comparison in lines of at most ``width`` columns; numbers are never cut."""
    return printed(render(cells, width), colour=colour, width=width)


def render(cells: Sequence[Cell], width: int = MAX_WIDTH) -> RenderableType:
    """The comparison as rich renderables; over several seeds with the intervals below the means."""
    ruler = Console(width=10 * width)
    sharing = _any_sharing(cells)
    known = [one for one in COLUMNS if sharing or not one.key.startswith("sharing")]
    for count in range(len(EXPENDABLE) + 1):
        columns = [one for one in known if one.key not in EXPENDABLE[:count]]
        table = _table(cells, columns)
        if ruler.measure(table).maximum <= width:
            break
    legend = [Text(LEGEND.format(sharing=SHARING if sharing else ""))]
    legend += [Text(DEMAND_LIMITED)] if _any_limited(cells) else []
    return Group(Text(provenance(cells), style="bold"), Text(), table, Text(), *legend)


def _any_sharing(cells: Iterable[Cell]) -> bool:
    """Whether any run was simulated: clients alone always are."""
    return any(cell.combined["simulated"] for cell in cells)


def _any_limited(cells: Iterable[Cell]) -> bool:
    return any(cell.demand_limited for cell in cells)


def provenance(cells: Sequence[Cell]) -> str:
    """Whether the numbers are simulated, on what, and over which seeds."""
    where = "; ".join(dict.fromkeys(basis(cell.combined) for cell in cells))
    seeds = sorted({seed for cell in cells for seed in cell.combined["seeds"]})
    if len(seeds) == 1:
        return f"{where}, seed {seeds[0]}"
    return f"{where}, {len(seeds)} seeds: mean and 95% bootstrap interval"


def _table(cells: Sequence[Cell], columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", max_width=LABEL_WIDTH, overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for place, group in groupby(cells, lambda cell: cell.place):
        rows = list(group)
        mark = f" {LIMITED}" if _any_limited(rows) else ""
        table.add_row(Text(place + mark, style="bold"))
        marks = [
            marks_of([cell.combined.get(one.key) for cell in rows], one.more_is_better)
            for one in columns
        ]
        for cell, marked in zip(rows, zip(*marks, strict=True), strict=True):
            texts = [
                _cell(cell.combined.get(column.key), column, mark)
                for column, mark in zip(columns, marked, strict=True)
            ]
            table.add_row(Text(f"  {cell.scheduler}"), *texts)
    return table


def _cell(interval: Interval | None, column: Column, mark: str) -> Text:
    if interval is None:
        return Text(UNDEFINED + " ")
    text = Text().append(bounded(interval, column) + mark, style=STYLES.get(mark, ""))
    if interval["runs"] > 1:
        low, high = (column.write(interval[key]) for key in ("low", "high"))
        text.append(f"\n{low}-{high} ", style="dim")
    return text


def bounded(interval: Interval, column: Column) -> str:
    """The mean as its column is written, ``> x`` or ``< x`` if it is only a bound."""
    if interval.get("lower_bound"):
        return more_than(interval["mean"])
    if interval.get("upper_bound"):
        return less_than(interval["mean"])
    return column.write(interval["mean"])
