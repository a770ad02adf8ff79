"""The report of a sweep: the best scheduler and its trade-off, then all numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from fairbench.config.sweep import to_toml
from fairbench.errors import DataError
from fairbench.report.comparison_table import (
    CERTAIN,
    LIMITED,
    of_several_seeds,
    provenance,
    tail_of,
)
from fairbench.report.marks import Interval
from fairbench.report.pages.chart_dots import Dot, DotRow, dot_chart
from fairbench.report.pages.page import (
    Block,
    Code,
    Definitions,
    Figure,
    Page,
    Paragraph,
    Section,
)
from fairbench.report.pages.run_page import rerun, versions
from fairbench.report.pages.sweep_grids import comparison_grid, place_sections
from fairbench.report.pages.sweep_tradeoff import (
    sweep_title,
    tradeoff_figures,
    tradeoff_headlines,
)
from fairbench.report.pages.sweep_warnings import sweep_warnings
from fairbench.report.palette import scheduler_series
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench.results.sharing import Bound, Incentive
from fairbench.results.sweep_store import SWEEP_FILE, SweepStore

MEANING = (
    "Latency of the worst-off well-behaved client, divided by its latency alone on 1/n "
    "of the cluster. At most 1 means that sharing the cluster pays off for every client."
)
LEGEND = (
    "▲ best and ▼ worst in a configuration, if significant{certain}. Minimum fair share of best "
    "total: the lowest fraction of its fair share of the best total that a client received. "
    f"{LIMITED} limited by demand: queues were empty for a part of the time, so service rates show "
    "the load rather than the scheduler."
)


def sweep_page(path: Path) -> Page:
    """Build the report of a sweep's directory. Raises DataError if it is unreadable or empty."""
    store = SweepStore(path)
    swept, cells = store.sweep(), compare_sweep(path)
    if not cells:
        raise DataError(f"{path}: no run of this sweep is finished")
    first, tail = cells[0].runs[0].run, tail_of(cells)
    return Page(
        title=sweep_title(cells),
        provenance=f"{provenance(cells)}. {swept.description or ''}".strip(),
        headlines=list(tradeoff_headlines(cells)),
        warnings=list(sweep_warnings(store, cells)),
        sections=[
            *_filled("Latency against throughput", list(tradeoff_figures(cells))),
            Section("Comparison", [comparison_grid(cells), Paragraph(_legend(cells))]),
            *_filled("Sharing incentive", list(_figure(cells, tail)), Paragraph(MEANING)),
            Section("Clients by configuration", []),
            *place_sections(cells),
            Section("Run it again", rerun(f"fairbench sweep {SWEEP_FILE}", SWEEP_FILE)),
            Section("Versions, of the first point", [Definitions(list(versions(first)))]),
            Section(SWEEP_FILE, [Code(to_toml(swept))], folded=True),
        ],
    )


def _filled(title: str, figures: Sequence[Figure], *before: Block) -> Iterator[Section]:
    """Yield a section with the given figures, or nothing if there are no figures."""
    if figures:
        yield Section(title, [*before, *figures])


def _legend(cells: Sequence[SchedulerResults]) -> str:
    return LEGEND.format(certain=CERTAIN if of_several_seeds(cells) else "")


def _by_scheduler(cells: Sequence[SchedulerResults]) -> dict[str, list[SchedulerResults]]:
    grouped: dict[str, list[SchedulerResults]] = {}
    for cell in cells:
        grouped.setdefault(cell.scheduler, []).append(cell)
    return grouped


def _incentive(cell: SchedulerResults, tail: int) -> Incentive:
    interval: Interval | None = cell.combined.get(f"sharing_incentive_p{tail}")
    if interval is None:
        return Incentive(None)
    lower, upper = interval.get("lower_bound"), interval.get("upper_bound")
    return Incentive(
        interval["mean"], Bound.LOWER if lower else Bound.UPPER if upper else Bound.EXACT
    )


def _figure(cells: Sequence[SchedulerResults], tail: int) -> Iterator[Figure]:
    names = list(_by_scheduler(cells))
    series = dict(zip(names, scheduler_series(names), strict=True))
    rows = []
    for place, group in groupby(cells, lambda cell: cell.place):
        ratios = {cell.scheduler: _incentive(cell, tail) for cell in group}
        dots = [
            Dot(series[name], one.value, one.bound.value)
            for name, one in ratios.items()
            if one.value
        ]
        rows.append(DotRow(place, dots))
    if any(row.dots for row in rows):
        label = f"sharing incentive, P{tail}"
        yield Figure(
            dot_chart(
                "Sharing incentive by configuration", series, rows, x_label=label, reference=1.0
            ),
            "Left of 1, a client has no reason to leave. Open marks with an arrow are only bounds: "
            "latencies that were longer than the run.",
        )
