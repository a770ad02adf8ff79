"""A comparison for people: one row per cell, by configuration, best and worst marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import columns_of, told
from fairbench.metrics.contention import hides_backlog
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.shown_percentiles import common_percentiles, shown_tail
from fairbench.report import numbers
from fairbench.report.marks import BEST, WORST, Interval, can_tell, cell_marks
from fairbench.report.numbers import UNDEFINED, WRITERS, bound_of
from fairbench.report.result_lines import NO_ORDER
from fairbench.report.table import MAX_WIDTH, plain_table, printed, stacked
from fairbench.results.comparison import SchedulerResults, by_place
from fairbench.results.header import bases
from fairbench.results.intervals import METHOD

LABEL_WIDTH = 30  # columns of a scheduler with the parameters that distinguish it from others
LIMITED = "~"
MAX_NAMED = 4  # limit on the cells that a remark names
STYLES = {BEST: "green", WORST: "red"}
SHARING = (
    "Sharing: latency of the worst-off well-behaved client, divided by its latency alone "
    "on 1/n of the cluster (at most 1: sharing pays off). "
)
LEGEND = (
    "{marks}. {sharing}Min. share of best: lowest fraction that a client received of its "
    "max-min fair share of the best total service."
)
CERTAIN = " (paired by seed, 95% each)"
MARKED = f"{BEST} best and {WORST} worst in a configuration, if significant"
ONE_SEED = "One seed cannot show a significant difference, so nothing is marked; use --num-runs 5"
DEMAND_LIMITED = (
    f"{LIMITED} limited by demand: queues were empty for a part of the time, so service "
    "rates show the load rather than the scheduler."
)


def comparison_columns(cells: Iterable[SchedulerResults] = ()) -> list[Column]:
    """Return the metrics by which these schedulers are compared."""
    listed = list(cells)
    keys = {key for cell in listed for key in cell.combined}
    columns = columns_of(Display.COMPARISON, tail_of(listed), percentiles_of(listed))
    return told(columns, keys)


def percentiles_of(cells: Iterable[SchedulerResults]) -> tuple[int, ...]:
    """Return the chosen percentiles if all cells agree, else none."""
    return common_percentiles(cell.combined for cell in cells)


def tail_of(cells: Iterable[SchedulerResults]) -> int:
    """Return the high percentile that the latencies of every run support."""
    return shown_tail(one.summary for cell in cells for one in cell.runs)


def comparison_text(
    cells: Sequence[SchedulerResults], *, colour: bool = False, width: int = MAX_WIDTH
) -> str:
    """Return the comparison in lines of at most ``width`` columns; numbers are never cut."""
    return printed(render(cells, width), colour=colour, width=width)


def render(cells: Sequence[SchedulerResults], width: int = MAX_WIDTH) -> RenderableType:
    """Render the comparison; with several seeds, intervals are below the means."""
    # the group that includes clients alone
    sharing = any(cell.combined["simulated"] for cell in cells)
    columns = comparison_columns(cells)
    known = [one for one in columns if sharing or not one.key.startswith("sharing")]
    table = stacked(known, lambda shown: _table(cells, shown), width)
    paired = CERTAIN if of_several_seeds(cells) else ""
    marks = MARKED + paired if can_tell(cells) else ONE_SEED
    legend = [Text(LEGEND.format(sharing=SHARING if sharing else "", marks=marks))]
    legend += [Text(DEMAND_LIMITED)] if any_limited(cells) else []
    legend += [Text(line) for line in _hidden(cells)]
    return Group(Text(provenance(cells), style="bold"), Text(), table, Text(), *legend)


def of_several_seeds(cells: Iterable[SchedulerResults]) -> bool:
    """Return whether any cell has several seeds, and thus confidence intervals."""
    return any(len(cell.combined["seeds"]) > 1 for cell in cells)


def _hidden(cells: Iterable[SchedulerResults]) -> Iterator[str]:
    names = [
        f"{cell.place} {cell.scheduler}"
        for cell in cells
        if any(hides_backlog(one.summary) for one in cell.runs)
    ]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    if names:
        yield f"Hidden backlog in {', '.join(names[:MAX_NAMED])}{more}: {NO_ORDER}."


def any_limited(cells: Iterable[SchedulerResults]) -> bool:
    """Return whether the demand limits the rates of any cell."""
    return any(cell.demand_limited for cell in cells)


def provenance(cells: Sequence[SchedulerResults]) -> str:
    """Return whether the numbers are simulated, on what hardware, and over which seeds."""
    where = bases(cell.combined for cell in cells)
    seeds = sorted({seed for cell in cells for seed in cell.combined["seeds"]})
    if len(seeds) == 1:
        return f"{where}, seed {seeds[0]}"
    return f"{where}, {len(seeds)} seeds: {METHOD}"


class Shown(NamedTuple):
    """A value as text, its mark, and its interval."""

    text: str
    mark: str
    ends: str


def shown(interval: Interval | None, column: Column, runs: int, mark: str = "") -> Shown:
    """Return a value that is combined from ``runs`` runs."""
    if interval is None:
        return Shown(UNDEFINED, mark, "")
    return Shown(bounded(interval, column), mark, ends_of(interval, column, runs))


def compared_rows(
    cells: Sequence[SchedulerResults], columns: Sequence[Column]
) -> Iterator[tuple[str, list[tuple[str, list[Shown]]]]]:
    """Yield the name of each configuration, with the values of its schedulers by name."""
    for place, here in by_place(cells).items():
        rows = [
            (
                cell.scheduler,
                [
                    shown(cell.combined.get(one.key), one, len(cell.combined["seeds"]), mark)
                    for one, mark in zip(columns, marks, strict=True)
                ],
            )
            for cell, marks in zip(here, cell_marks(here, columns), strict=True)
        ]
        yield f"{place} {LIMITED}" if any_limited(here) else place, rows


def _table(cells: Sequence[SchedulerResults], columns: Sequence[Column]) -> Table:
    table = plain_table(gap=1)
    table.add_column("", max_width=LABEL_WIDTH, overflow="fold")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for place, rows in compared_rows(cells, columns):
        table.add_row(Text(place, style="bold"))
        for scheduler, values in rows:
            table.add_row(Text(f"  {scheduler}"), *map(_cell, values))
    return table


def _cell(value: Shown) -> Text:
    text = Text().append(value.text + value.mark, style=STYLES.get(value.mark, ""))
    return text.append(f"\n{value.ends} ", style="dim") if value.ends else text


def ends_of(interval: Interval, column: Column, runs: int) -> str:
    """Return ``low-high``, and the number of runs if not all have a value; "" if there is neither.

    Equal ends, such as those of a replayed trace over seeds, are left out.
    """
    ends = ""
    if interval["low"] is not None:
        low, high = (WRITERS[column.form](interval[key]) for key in ("low", "high"))
        ends = "" if low == high else f"{low}-{high}"
    return f"{ends} ({interval['runs']}/{runs})".strip() if interval["runs"] < runs else ends


def bounded(interval: Interval, column: Column) -> str:
    """Return the mean in its column's format; ``> x`` or ``< x`` if it is only a bound."""
    return numbers.bounded(interval["mean"], bound_of(interval), column.form)
