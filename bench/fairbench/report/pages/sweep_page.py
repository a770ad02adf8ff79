"""The report of a sweep: the best scheduler, latency against throughput, and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairbench.config.sweep import sweep_toml
from fairbench.errors import DataError
from fairbench.metrics.catalogue import columns_of, columns_with_values
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.shown_percentiles import shown_client_tail
from fairbench.report.client_table import described, shown_clients
from fairbench.report.comparison_table import (
    BEST,
    CERTAIN,
    DEMAND_LIMITED,
    RATE,
    WORST,
    Interval,
    ShownValue,
    compared,
    compared_rows,
    comparison_columns,
    latency_column,
    mean_of,
    of_several_seeds,
    percentiles_of,
    provenance,
    shown,
    sweep_title,
    tail_of,
    written_of,
)
from fairbench.report.numbers import bound_of, number, percent, whole
from fairbench.report.pages.chart import (
    ChartPoint,
    Dot,
    DotRow,
    Ends,
    PointSeries,
    dot_chart,
    point_chart,
    tick_text,
)
from fairbench.report.pages.page import (
    Cell,
    Figure,
    Grid,
    Headline,
    Page,
    Paragraph,
    Section,
    filled,
)
from fairbench.report.pages.run_page import origin, own_files
from fairbench.report.pages.warnings import sweep_warnings
from fairbench.report.pair_table import lost_between
from fairbench.report.palette import scheduler_series
from fairbench.results.comparison import SchedulerResults, by_place, compare_sweep
from fairbench.results.store import SWEEP_FILE, SweepStore
from fairbench.results.sweeps import SweepAxis, SweepLine, axes_of

MOST_FIGURES = 6  # maximum number of configurations with a plot of latency over throughput
LOG_ABOVE = 8.0  # The scale is logarithmic if latencies differ by more than this factor.


def tradeoff_headlines(cells: Sequence[SchedulerResults]) -> Iterator[Headline]:
    """Yield a card per scheduler, with latency and throughput.

    If the sweep has several configurations, each card says in how many configurations its scheduler
    is best.
    """
    places, column = compared(cells), latency_column(cells)
    tail = tail_of(cells)
    if len(places) == 1:
        for cell in cells:
            if cell.combined.get(column.key) is not None:
                share = mean_of(cell, "min_share_60s")
                also = "" if share is None else f", {percent(share)} minimum fair share in 60 s"
                rate = f"{whole(mean_of(cell, RATE))} tok/s{also}"
                value = f"{written_of(cell, column)} s"
                yield Headline(cell.scheduler, value, f"P{tail} of the well-behaved; {rate}")
        return
    for name in dict.fromkeys(cell.scheduler for cell in cells):
        own = [cell for cell in cells if cell.scheduler == name]
        wins = sum(one.best == name for one in places)
        known = [mean for cell in own if (mean := mean_of(cell, column.key)) is not None]
        if known:
            lowest = f"significantly lowest in {wins} of {len(places)} configurations"
            value = f"{number(min(known))} to {number(max(known))} s"
            yield Headline(name, value, f"P{tail} of the well-behaved; {lowest}")


def tradeoff_figures(cells: Sequence[SchedulerResults]) -> Iterator[Figure]:
    """Yield a picture for each configuration, with a mark and intervals for each scheduler."""
    names = list(dict.fromkeys(cell.scheduler for cell in cells))
    swatches = dict(zip(names, scheduler_series(names), strict=True))
    column, tail = latency_column(cells), tail_of(cells)
    places = compared(cells)
    for one in places[:MOST_FIGURES]:
        series = [
            PointSeries(cell.scheduler, swatches[cell.scheduler], [point])
            for cell in one.cells
            if (point := _point(cell, column.key)) is not None
        ]
        if not series:
            continue
        values = [one.points[0].y for one in series]
        log = min(values) > 0 and max(values) > LOG_ABOVE * min(values)
        chart = point_chart(
            f"Latency against throughput: {one.place}",
            series,
            x_label="throughput, weighted tokens/s",
            y_label=f"P{tail} of the well-behaved clients, s",
            log_y=log,
        )
        yield Figure(
            chart, f"{one.place}: the best scheduler is at the bottom right.{_bars(one.cells)}"
        )


def _bars(cells: Sequence[SchedulerResults]) -> str:
    return " Bars: 95% intervals over the seeds." if of_several_seeds(cells) else ""


def _point(cell: SchedulerResults, key: str) -> ChartPoint | None:
    rate, latency = cell.combined.get(RATE), cell.combined.get(key)
    if rate is None or latency is None or latency["mean"] is None or rate["mean"] is None:
        return None
    return _point_with_ends(rate["mean"], latency)._replace(x_ends=_ends(rate))


def _point_with_ends(x: float, y: Interval, factor: float = 1.0) -> ChartPoint:
    return ChartPoint(x, y["mean"] * factor, None, _ends(y, factor), bool(bound_of(y)))


def _ends(interval: Interval, factor: float = 1.0) -> Ends:
    low, high = interval.get("low"), interval.get("high")
    return None if low is None or high is None else (low * factor, high * factor)


SHARE = "min_entitlement_best_ratio"
MOST_ROWS = 4  # maximum number of rows of line charts on the page


class _Metric(NamedTuple):
    """A metric to draw over a swept parameter: key, label, unit factor, and kind of scale."""

    key: str
    label: str
    factor: float = 1.0
    may_be_log: bool = False


def line_figures(cells: Sequence[SchedulerResults]) -> Iterator[Figure]:
    """Yield line charts of latency, throughput and fair share against each swept parameter.

    A sweep without a numeric parameter has no line charts.
    """
    tail, column = tail_of(cells), latency_column(cells)
    metrics = (
        _Metric(column.key, f"P{tail} of the well-behaved clients, s", may_be_log=True),
        _Metric(RATE, "throughput, weighted tokens/s"),
        _Metric(SHARE, "minimum fair share of the best total, %", 100.0),
    )
    names = list(dict.fromkeys(name for one in axes_of(cells) for name in one.schedulers))
    swatches = dict(zip(names, scheduler_series(names), strict=True))
    rows = [(axis, place, lines) for axis in axes_of(cells) for place, lines in axis.places.items()]
    for axis, place, lines in rows[:MOST_ROWS]:
        for metric in metrics:
            series = [
                PointSeries(line.scheduler, swatches[line.scheduler], points, joined=True)
                for line in lines
                if (points := _axis_points(line, metric))
            ]
            if series:
                yield _lines_figure(axis, place, metric, series, _bars(cells))


def _axis_points(line: SweepLine, metric: _Metric) -> list[ChartPoint]:
    found = [(value, cell.combined.get(metric.key)) for value, cell in line.points]
    known = [(value, one) for value, one in found if one and one["mean"] is not None]
    return [_point_with_ends(value, one, metric.factor) for value, one in known]


def _lines_figure(
    axis: SweepAxis, place: str, metric: _Metric, series: Sequence[PointSeries], bars: str
) -> Figure:
    values = [point.y for one in series for point in one.points]
    log_y = metric.may_be_log and min(values) > 0 and max(values) > LOG_ABOVE * min(values)
    called = metric.label.partition(",")[0]
    chart = point_chart(
        f"{called} over {axis.name}: {place}",
        series,
        x_label=axis.label,
        y_label=metric.label,
        log_x=axis.is_log,
        x_ticks=[(value, tick_text(value)) for value in axis.ticks],
        log_y=log_y,
    )
    return Figure(chart, f"{place}: {called} over {axis.name}.{bars}")


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
    """Build the report page of a sweep.

    Raises DataError if the directory is empty or cannot be read.
    """
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
            Section(
                "Comparison", [comparison_grid(cells), Paragraph(legend), *lost_paragraphs(cells)]
            ),
            *filled("Sharing incentive", list(_figure(cells, tail)), Paragraph(MEANING)),
            Section("Clients by configuration", []),
            *place_sections(cells),
            *origin(
                *(first, "sweep", SWEEP_FILE, sweep_toml(swept), ", of the first point"),
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


MOST_LOST = 8


def lost_paragraphs(cells: Sequence[SchedulerResults]) -> Iterator[Paragraph]:
    """Yield sentences comparing the first scheduler's lost GPU time with each other scheduler's."""
    lines = [
        f"{place}: {lost}."
        for place, (first, *others) in by_place(cells).items()
        for other in others
        if (lost := lost_between(first, other))
    ]
    for line in lines[:MOST_LOST]:
        yield Paragraph(line)
    if len(lines) > MOST_LOST:
        yield Paragraph(f"The runs' own pages have the lost time of {len(lines) - MOST_LOST} more.")


INDENT = "\u2003"
MARKS = {BEST: "best", WORST: "worst"}


def comparison_grid(cells: Sequence[SchedulerResults]) -> Grid:
    """Return a table of schedulers by configuration, with the best and worst values marked."""
    rows: list[list[Cell]] = []
    columns = comparison_columns(cells)
    for place, here in compared_rows(cells, columns):
        rows.append([Cell(place)])
        rows += [[Cell(f"{INDENT}{name}"), *map(_grid_cell, values)] for name, values in here]
    return Grid(["", *(column.title for column in columns)], rows)


def _grid_cell(value: ShownValue) -> Cell:
    return Cell(value.text, MARKS.get(value.mark, ""), value.ends)


def plain_row(name: str, values: Interval, columns: Sequence[Column], runs: int) -> list[Cell]:
    """Return a table row of values over ``runs`` runs; no value is marked as the best or worst."""
    return [Cell(name), *(_grid_cell(shown(values.get(one.key), one, runs)) for one in columns)]


def place_sections(cells: Sequence[SchedulerResults]) -> Iterator[Section]:
    """Yield a folded section for each configuration, with the clients under each scheduler."""
    for place, here in by_place(cells).items():
        rows: list[list[Cell]] = []
        tail = shown_client_tail(one.summary for cell in here for one in cell.runs)
        keys = {key for cell in here for one in cell.combined["clients"] for key in one}
        columns = columns_with_values(
            columns_of(Display.COMPARED_CLIENTS, tail, percentiles_of(here)), keys
        )
        for cell in here:
            clients, which = shown_clients(cell.combined)
            rows.append([Cell(f"{cell.scheduler}: {which}" if which else cell.scheduler)])
            for client in clients:
                name = described(f"{INDENT}{client['client']}", client)
                rows.append(plain_row(name, client, columns, cell.planned_runs))
        headings = ["", *(column.title for column in columns)]
        yield Section(place, [Grid(headings, rows)], folded=True)
