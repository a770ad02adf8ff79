"""The report of a sweep: the best scheduler and its trade-off, then tables of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairbench.config.sweep import to_toml
from fairbench.errors import DataError
from fairbench.metrics.catalogue import columns_of, told
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.shown_percentiles import shown_client_tail
from fairbench.report.client_table import described
from fairbench.report.comparison_table import (
    CERTAIN,
    DEMAND_LIMITED,
    Shown,
    compared_rows,
    comparison_columns,
    of_several_seeds,
    percentiles_of,
    provenance,
    shown,
    tail_of,
)
from fairbench.report.crowd import shown_clients
from fairbench.report.marks import BEST, WORST, Interval
from fairbench.report.numbers import bound_of
from fairbench.report.pages.chart_rows import Dot, DotRow, dot_chart
from fairbench.report.pages.page import Cell, Figure, Grid, Page, Paragraph, Section, filled
from fairbench.report.pages.run_page import origin, own_files
from fairbench.report.pages.sweep_lines import line_figures
from fairbench.report.pages.sweep_tradeoff import sweep_title, tradeoff_figures, tradeoff_headlines
from fairbench.report.pages.warnings import sweep_warnings
from fairbench.report.palette import scheduler_series
from fairbench.results.comparison import SchedulerResults, by_place, compare_sweep
from fairbench.results.sweep_store import SWEEP_FILE, SweepStore

MEANING = (
    "Latency of the worst-off well-behaved client, divided by its latency alone on 1/n "
    "of the cluster. At most 1 means that sharing the cluster pays off for every client."
)
LEGEND = (
    "▲ best and ▼ worst in a configuration, if significant{certain}. Minimum fair share of best "
    "total: the lowest fraction of its fair share of the best total that a client received. "
    f"{DEMAND_LIMITED}"
)


def sweep_page(path: Path) -> Page:
    """Build the report of a sweep's directory. Raises DataError if it is unreadable or empty."""
    store = SweepStore(path)
    swept, cells = store.sweep(), compare_sweep(path)
    if not cells:
        raise DataError(f"{path}: no run of this sweep is finished")
    first, tail = cells[0].runs[0].run, tail_of(cells)
    legend = LEGEND.format(certain=CERTAIN if of_several_seeds(cells) else "")
    return Page(
        title=sweep_title(cells),
        provenance=f"{provenance(cells)}. {swept.description or ''}".strip(),
        headlines=list(tradeoff_headlines(cells)),
        warnings=list(sweep_warnings(store, cells)),
        sections=[
            *filled("Metrics over the swept values", list(line_figures(cells))),
            *filled("Latency against throughput", list(tradeoff_figures(cells))),
            Section("Comparison", [comparison_grid(cells), Paragraph(legend)]),
            *filled("Sharing incentive", list(_figure(cells, tail)), Paragraph(MEANING)),
            Section("Clients by configuration", []),
            *place_sections(cells),
            *origin(
                *(first, "sweep", SWEEP_FILE, to_toml(swept), ", of the first point"),
                before=own_files(first),
            ),
        ],
    )


def _figure(cells: Sequence[SchedulerResults], tail: int) -> Iterator[Figure]:
    key, names = f"sharing_incentive_p{tail}", list(dict.fromkeys(one.scheduler for one in cells))
    series = dict(zip(names, scheduler_series(names), strict=True))
    rows = []
    for place, here in by_place(cells).items():
        ratios = [(cell.scheduler, cell.combined.get(key)) for cell in here]
        dots = [
            Dot(series[name], found["mean"], bound_of(found))
            for name, found in ratios
            if found and found["mean"]
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


INDENT = "\u2003"
MARKS = {BEST: "best", WORST: "worst"}


def comparison_grid(cells: Sequence[SchedulerResults]) -> Grid:
    """Return a row per scheduler, by configuration, with the best and worst values marked."""
    rows: list[list[Cell]] = []
    columns = comparison_columns(cells)
    for place, here in compared_rows(cells, columns):
        rows.append([Cell(place)])
        rows += [[Cell(f"{INDENT}{name}"), *map(_cell, values)] for name, values in here]
    return Grid(["", *(column.title for column in columns)], rows)


def _cell(value: Shown) -> Cell:
    return Cell(value.text, MARKS.get(value.mark, ""), value.ends)


def plain_row(name: str, values: Interval, columns: Sequence[Column], runs: int) -> list[Cell]:
    """Return a row without marks, of values combined from ``runs`` runs."""
    return [Cell(name), *(_cell(shown(values.get(one.key), one, runs)) for one in columns)]


def place_sections(cells: Sequence[SchedulerResults]) -> Iterator[Section]:
    """Yield, for each configuration, a folded table of clients under each scheduler."""
    for place, here in by_place(cells).items():
        rows: list[list[Cell]] = []
        tail = shown_client_tail(one.summary for cell in here for one in cell.runs)
        keys = {key for cell in here for one in cell.combined["clients"] for key in one}
        columns = told(columns_of(Display.COMPARED_CLIENTS, tail, percentiles_of(here)), keys)
        for cell in here:
            clients, which = shown_clients(cell.combined)
            rows.append([Cell(f"{cell.scheduler}: {which}" if which else cell.scheduler)])
            runs = len(cell.combined["seeds"])
            for client in clients:
                name = described(f"{INDENT}{client['client']}", client)
                rows.append(plain_row(name, client, columns, runs))
        headings = ["", *(column.title for column in columns)]
        yield Section(place, [Grid(headings, rows)], folded=True)
