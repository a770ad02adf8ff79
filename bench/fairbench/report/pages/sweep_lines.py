"""The figures of a sweep over an axis: metrics as lines over replicas, a load or a parameter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairbench.metrics.metric import Column
from fairbench.report.comparison_table import of_several_seeds, tail_of
from fairbench.report.pages.chart import tick_text
from fairbench.report.pages.chart_series import Point, PointSeries, point_chart
from fairbench.report.pages.page import Figure
from fairbench.report.pages.sweep_tradeoff import LOG_ABOVE, RATE, interval_ends, latency_column
from fairbench.report.palette import scheduler_series
from fairbench.results.comparison import SchedulerResults
from fairbench.results.sweep_axes import Axis, Line, axes_of

SHARE = "min_entitlement_best_ratio"
MOST_ROWS = 4  # limit on the axes and configurations that each have figures


class _Metric(NamedTuple):
    """A metric over an axis: its key, the label of its axis, a factor, and its form."""

    key: str
    label: str
    factor: float = 1.0
    may_be_log: bool = False


def line_figures(cells: Sequence[SchedulerResults]) -> Iterator[Figure]:
    """Yield latency, throughput and fair share over each axis, by configuration.

    A sweep without an axis has no such figures.
    """
    tail, column = tail_of(cells), latency_column(cells)
    metrics = _metrics(column, tail)
    swatches = _swatches(cells)
    rows = [(axis, place, lines) for axis in axes_of(cells) for place, lines in axis.places.items()]
    for axis, place, lines in rows[:MOST_ROWS]:
        for metric in metrics:
            series = [
                PointSeries(line.scheduler, swatches[line.scheduler], points, joined=True)
                for line in lines
                if (points := _points(line, metric))
            ]
            if series:
                yield _figure(axis, place, metric, series, several=of_several_seeds(cells))


def _metrics(column: Column, tail: int) -> tuple[_Metric, ...]:
    return (
        _Metric(column.key, f"P{tail} of the well-behaved clients, s", may_be_log=True),
        _Metric(RATE, "throughput, weighted tokens/s"),
        _Metric(SHARE, "minimum fair share of the best total, %", 100.0),
    )


def _swatches(cells: Sequence[SchedulerResults]) -> dict[str, int]:
    names = list(dict.fromkeys(name for one in axes_of(cells) for name in one.schedulers))
    return dict(zip(names, scheduler_series(names), strict=True))


def _points(line: Line, metric: _Metric) -> list[Point]:
    found = []
    for value, cell in line.points:
        known = cell.combined.get(metric.key)
        if known is not None and known["mean"] is not None:
            ends = interval_ends(known)
            scaled = None if ends is None else (ends[0] * metric.factor, ends[1] * metric.factor)
            bound = bool(known.get("lower_bound") or known.get("upper_bound"))
            found.append(Point(value, known["mean"] * metric.factor, None, scaled, bound))
    return found


def _figure(
    axis: Axis, place: str, metric: _Metric, series: Sequence[PointSeries], *, several: bool
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
    bars = " Bars: 95% intervals over the seeds." if several else ""
    return Figure(chart, f"{place}: {called} over {axis.name}.{bars}")
