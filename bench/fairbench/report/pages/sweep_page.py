"""The report of a sweep: the best scheduler, latency against throughput, and tables of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairbench.config.sweep import sweep_toml
from fairbench.errors import DataError
from fairbench.metrics.catalogue import columns_of, columns_with_values
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.shown_percentiles import shown_client_tail
from fairbench.report import comparison_table
from fairbench.report.client_table import described, shown_clients
from fairbench.report.numbers import bound_of, number, percent, whole
from fairbench.report.pages import page
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
from fairbench.report.pages.run_page import origin, own_files
from fairbench.report.pages.warnings import sweep_warnings
from fairbench.report.pair_table import lost_between
from fairbench.report.palette import scheduler_series
from fairbench.results.comparison import SchedulerResults, by_place, compare_sweep
from fairbench.results.store import SWEEP_FILE, SweepStore
from fairbench.results.sweeps import SweepAxis, SweepLine, axes_of

# At most this number of configurations has a picture of latency against throughput.
MOST_FIGURES = 6
# The scale is logarithmic if the highest latency exceeds this multiple of the lowest.
LOG_ABOVE = 8.0


def tradeoff_headlines(cells: Sequence[SchedulerResults]) -> Iterator[page.Headline]:
    """Yield a card per scheduler: latency and throughput, or the number of configurations won."""
    places, column = comparison_table.compared(cells), comparison_table.latency_column(cells)
    tail = comparison_table.tail_of(cells)
    if len(places) == 1:
        for cell in cells:
            if cell.combined.get(column.key) is not None:
                share = comparison_table.mean_of(cell, "min_share_60s")
                also = "" if share is None else f", {percent(share)} minimum fair share in 60 s"
                rate = f"{whole(comparison_table.mean_of(cell, comparison_table.RATE))} tok/s{also}"
                value = f"{comparison_table.written_of(cell, column)} s"
                yield page.Headline(cell.scheduler, value, f"P{tail} of the well-behaved; {rate}")
        return
    for name in dict.fromkeys(cell.scheduler for cell in cells):
        own = [cell for cell in cells if cell.scheduler == name]
        wins = sum(one.best == name for one in places)
        known = [
            mean for cell in own if (mean := comparison_table.mean_of(cell, column.key)) is not None
        ]
        if known:
            lowest = f"significantly lowest in {wins} of {len(places)} configurations"
            value = f"{number(min(known))} to {number(max(known))} s"
            yield page.Headline(name, value, f"P{tail} of the well-behaved; {lowest}")


def tradeoff_figures(cells: Sequence[SchedulerResults]) -> Iterator[page.Figure]:
    """Yield a picture for each configuration, with a mark and intervals for each scheduler."""
    names = list(dict.fromkeys(cell.scheduler for cell in cells))
    swatches = dict(zip(names, scheduler_series(names), strict=True))
    column, tail = comparison_table.latency_column(cells), comparison_table.tail_of(cells)
    places = comparison_table.compared(cells)
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
        yield page.Figure(
            chart, f"{one.place}: the best scheduler is at the bottom right.{_bars(one.cells)}"
        )


def _bars(cells: Sequence[SchedulerResults]) -> str:
    return (
        " Bars: 95% intervals over the seeds." if comparison_table.of_several_seeds(cells) else ""
    )


def _point(cell: SchedulerResults, key: str) -> ChartPoint | None:
    rate, latency = cell.combined.get(comparison_table.RATE), cell.combined.get(key)
    if rate is None or latency is None or latency["mean"] is None or rate["mean"] is None:
        return None
    bound = bool(latency.get("lower_bound") or latency.get("upper_bound"))
    return ChartPoint(
        rate["mean"], latency["mean"], interval_ends(rate), interval_ends(latency), bound
    )


def interval_ends(interval: comparison_table.Interval) -> Ends:
    """Return the ends of an interval, or None for a single value."""
    low, high = interval.get("low"), interval.get("high")
    return None if low is None or high is None else (low, high)


SHARE = "min_entitlement_best_ratio"
MOST_ROWS = 4  # At most this number of axes, and of configurations per axis, has figures.


class _Metric(NamedTuple):
    """A metric to draw over an axis: key, label, factor to the label's unit, and kind of scale."""

    key: str
    label: str
    factor: float = 1.0
    may_be_log: bool = False


def line_figures(cells: Sequence[SchedulerResults]) -> Iterator[page.Figure]:
    """Yield figures of latency, throughput and fair share over each axis, by configuration.

    A sweep without a numeric axis has no such figures.
    """
    tail, column = comparison_table.tail_of(cells), comparison_table.latency_column(cells)
    metrics = _metrics(column, tail)
    swatches = _swatches(cells)
    rows = [(axis, place, lines) for axis in axes_of(cells) for place, lines in axis.places.items()]
    for axis, place, lines in rows[:MOST_ROWS]:
        for metric in metrics:
            series = [
                PointSeries(line.scheduler, swatches[line.scheduler], points, joined=True)
                for line in lines
                if (points := _axis_points(line, metric))
            ]
            if series:
                yield _lines_figure(
                    axis, place, metric, series, several=comparison_table.of_several_seeds(cells)
                )


def _metrics(column: Column, tail: int) -> tuple[_Metric, ...]:
    return (
        _Metric(column.key, f"P{tail} of the well-behaved clients, s", may_be_log=True),
        _Metric(comparison_table.RATE, "throughput, weighted tokens/s"),
        _Metric(SHARE, "minimum fair share of the best total, %", 100.0),
    )


def _swatches(cells: Sequence[SchedulerResults]) -> dict[str, int]:
    names = list(dict.fromkeys(name for one in axes_of(cells) for name in one.schedulers))
    return dict(zip(names, scheduler_series(names), strict=True))


def _axis_points(line: SweepLine, metric: _Metric) -> list[ChartPoint]:
    found = []
    for value, cell in line.points:
        known = cell.combined.get(metric.key)
        if known is not None and known["mean"] is not None:
            ends = interval_ends(known)
            scaled = None if ends is None else (ends[0] * metric.factor, ends[1] * metric.factor)
            bound = bool(known.get("lower_bound") or known.get("upper_bound"))
            found.append(ChartPoint(value, known["mean"] * metric.factor, None, scaled, bound))
    return found


def _lines_figure(
    axis: SweepAxis, place: str, metric: _Metric, series: Sequence[PointSeries], *, several: bool
) -> page.Figure:
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
    bars = " Bars: 95% intervals over the seeds." if several else ""
    return page.Figure(chart, f"{place}: {called} over {axis.name}.{bars}")


MEANING = (
    "Latency of the worst-off well-behaved client, divided by its latency alone on 1/n "
    "of the cluster. At most 1 means that sharing the cluster pays off for every client."
)
LEGEND = (
    "▲ best and ▼ worst in a configuration, if significant{certain}. Minimum fair share of best "
    "total: the lowest fraction of its fair share of the best total that a client received. "
    f"{comparison_table.DEMAND_LIMITED}"
)


def sweep_page(path: Path) -> page.Page:
    """Build the report of a sweep. Raises DataError for an unreadable or empty directory."""
    store = SweepStore(path)
    swept, cells = store.sweep(), compare_sweep(path)
    if not cells:
        raise DataError(f"{path}: no run of this sweep is finished")
    first, tail = cells[0].runs[0].run, comparison_table.tail_of(cells)
    legend = LEGEND.format(
        certain=comparison_table.CERTAIN if comparison_table.of_several_seeds(cells) else ""
    )
    return page.Page(
        title=comparison_table.sweep_title(cells),
        provenance=f"{comparison_table.provenance(cells)}. {swept.description or ''}".strip(),
        headlines=list(tradeoff_headlines(cells)),
        warnings=list(sweep_warnings(store, cells)),
        sections=[
            *page.filled("Metrics over the swept values", list(line_figures(cells))),
            *page.filled("Latency against throughput", list(tradeoff_figures(cells))),
            page.Section(
                "Comparison",
                [comparison_grid(cells), page.Paragraph(legend), *lost_paragraphs(cells)],
            ),
            *page.filled("Sharing incentive", list(_figure(cells, tail)), page.Paragraph(MEANING)),
            page.Section("Clients by configuration", []),
            *place_sections(cells),
            *origin(
                *(first, "sweep", SWEEP_FILE, sweep_toml(swept), ", of the first point"),
                before=own_files(first),
            ),
        ],
    )


def _figure(cells: Sequence[SchedulerResults], tail: int) -> Iterator[page.Figure]:
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
        yield page.Figure(
            dot_chart(
                "Sharing incentive by configuration", series, rows, x_label=label, reference=1.0
            ),
            "Left of 1, a client has no reason to leave. Open marks with an arrow are only bounds: "
            "latencies that were longer than the run.",
        )


MOST_LOST = 8  # At most this number of sentences compares lost GPU time.


def lost_paragraphs(cells: Sequence[SchedulerResults]) -> Iterator[page.Paragraph]:
    """Yield sentences that compare lost GPU time with each configuration's first scheduler."""
    lines = [
        f"{place}: {lost}."
        for place, (first, *others) in by_place(cells).items()
        for other in others
        if (lost := lost_between(first, other))
    ]
    for line in lines[:MOST_LOST]:
        yield page.Paragraph(line)
    if len(lines) > MOST_LOST:
        yield page.Paragraph(
            f"The runs' own pages have the lost time of {len(lines) - MOST_LOST} more."
        )


INDENT = "\u2003"
MARKS = {comparison_table.BEST: "best", comparison_table.WORST: "worst"}


def comparison_grid(cells: Sequence[SchedulerResults]) -> page.Grid:
    """Return a table of schedulers by configuration, with the best and worst values marked."""
    rows: list[list[page.Cell]] = []
    columns = comparison_table.comparison_columns(cells)
    for place, here in comparison_table.compared_rows(cells, columns):
        rows.append([page.Cell(place)])
        rows += [[page.Cell(f"{INDENT}{name}"), *map(_grid_cell, values)] for name, values in here]
    return page.Grid(["", *(column.title for column in columns)], rows)


def _grid_cell(value: comparison_table.ShownValue) -> page.Cell:
    return page.Cell(value.text, MARKS.get(value.mark, ""), value.ends)


def plain_row(
    name: str, values: comparison_table.Interval, columns: Sequence[Column], runs: int
) -> list[page.Cell]:
    """Return a table row of values that are combined from ``runs`` runs, without marks."""
    return [
        page.Cell(name),
        *(_grid_cell(comparison_table.shown(values.get(one.key), one, runs)) for one in columns),
    ]


def place_sections(cells: Sequence[SchedulerResults]) -> Iterator[page.Section]:
    """Yield, for each configuration, a folded table of clients under each scheduler."""
    for place, here in by_place(cells).items():
        rows: list[list[page.Cell]] = []
        tail = shown_client_tail(one.summary for cell in here for one in cell.runs)
        keys = {key for cell in here for one in cell.combined["clients"] for key in one}
        columns = columns_with_values(
            columns_of(Display.COMPARED_CLIENTS, tail, comparison_table.percentiles_of(here)), keys
        )
        for cell in here:
            clients, which = shown_clients(cell.combined)
            rows.append([page.Cell(f"{cell.scheduler}: {which}" if which else cell.scheduler)])
            runs = len(cell.combined["seeds"])
            for client in clients:
                name = described(f"{INDENT}{client['client']}", client)
                rows.append(plain_row(name, client, columns, runs))
        headings = ["", *(column.title for column in columns)]
        yield page.Section(place, [page.Grid(headings, rows)], folded=True)
