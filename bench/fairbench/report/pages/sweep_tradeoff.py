"""The choice of a scheduler: latency of well-behaved clients against throughput."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairbench.metrics.metric import Better, Column, Form
from fairbench.report.comparison_table import bounded, of_several_seeds, tail_of
from fairbench.report.marks import BEST, Interval, cell_marks
from fairbench.report.numbers import UNDEFINED, number, percent, whole
from fairbench.report.pages.chart_series import Ends, Point, PointSeries, point_chart
from fairbench.report.pages.page import Figure, Headline
from fairbench.report.palette import scheduler_series
from fairbench.results.comparison import SchedulerResults, by_place

RATE = "service_rate_tok_s"
MOST_FIGURES = 6  # limit on configurations with a picture
LOG_ABOVE = 8.0  # multiple of the lowest latency from which on the scale is logarithmic


class Compared(NamedTuple):
    """The schedulers of one configuration, and the one with the lowest latency, if any."""

    place: str
    cells: tuple[SchedulerResults, ...]
    best: str | None


def compared(cells: Sequence[SchedulerResults]) -> list[Compared]:
    """Return the configurations, each with its best scheduler.

    The best scheduler has a lower latency than every other: by the paired intervals over several
    seeds, or by the numbers for one seed.
    """
    column = latency_column(cells)
    found = []
    for place, here in by_place(cells).items():
        marks = cell_marks(here, [column])
        best = [cell.scheduler for cell, (mark,) in zip(here, marks, strict=True) if mark == BEST]
        found.append(Compared(place, tuple(here), best[0] if len(best) == 1 else None))
    return found


def latency_column(cells: Sequence[SchedulerResults]) -> Column:
    """Return the tail latency of the well-behaved as a column."""
    tail = tail_of(cells)
    return Column(f"victim_p{tail}_s", f"P{tail}", Form.SECONDS, Better.LESS, 3)


def sweep_title(cells: Sequence[SchedulerResults]) -> str:
    """Return the answer of a sweep in a line."""
    places, tail = compared(cells), tail_of(cells)
    what = f"P{tail} of the well-behaved clients"
    schedulers = list(dict.fromkeys(cell.scheduler for cell in cells))
    if len(schedulers) == 1:
        count = len(places)
        return f"{schedulers[0]} in {count} configuration{'s' if count > 1 else ''}"
    if len(places) == 1:
        one = places[0]
        if one.best is None:
            return f"No scheduler has a significantly lower {what} than all others"
        best = next(cell for cell in one.cells if cell.scheduler == one.best)
        column = latency_column(cells)
        rate = _mean(best, RATE)
        return (
            f"{one.best} has the lowest {what}: {_written(best, column)} s at {whole(rate)} tok/s"
        )
    wins = {name: sum(one.best == name for one in places) for name in schedulers}
    most = max(wins.values())
    if not most:
        return f"No scheduler has a significantly lower {what} in any configuration"
    best_names = ", ".join(name for name, count in wins.items() if count == most)
    return f"Lowest {what}: {best_names} in {most} of {len(places)} configurations"


def tradeoff_headlines(cells: Sequence[SchedulerResults]) -> Iterator[Headline]:
    """Yield a card for each scheduler: its latency and throughput, or its wins."""
    places, column = compared(cells), latency_column(cells)
    tail = tail_of(cells)
    if len(places) == 1:
        for cell in cells:
            if cell.combined.get(column.key) is not None:
                share = _mean(cell, "min_share_60s")
                also = "" if share is None else f", {percent(share)} minimum share in 60 s"
                rate = f"{whole(_mean(cell, RATE))} tok/s{also}"
                value = f"{_written(cell, column)} s"
                yield Headline(cell.scheduler, value, f"P{tail} of the well-behaved; {rate}")
        return
    for name in dict.fromkeys(cell.scheduler for cell in cells):
        own = [cell for cell in cells if cell.scheduler == name]
        wins = sum(one.best == name for one in places)
        known = [mean for cell in own if (mean := _mean(cell, column.key)) is not None]
        if known:
            lowest = f"significantly lowest in {wins} of {len(places)} configurations"
            value = f"{number(min(known))} to {number(max(known))} s"
            yield Headline(name, value, f"P{tail} of the well-behaved; {lowest}")


def tradeoff_figures(cells: Sequence[SchedulerResults]) -> Iterator[Figure]:
    """Yield a picture for each configuration: one mark per scheduler, with intervals."""
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


def _point(cell: SchedulerResults, key: str) -> Point | None:
    rate, latency = cell.combined.get(RATE), cell.combined.get(key)
    if rate is None or latency is None or latency["mean"] is None or rate["mean"] is None:
        return None
    bound = bool(latency.get("lower_bound") or latency.get("upper_bound"))
    return Point(rate["mean"], latency["mean"], interval_ends(rate), interval_ends(latency), bound)


def interval_ends(interval: Interval) -> Ends:
    """Return the ends of an interval; None if it has none."""
    low, high = interval.get("low"), interval.get("high")
    return None if low is None or high is None else (low, high)


def _mean(cell: SchedulerResults, key: str) -> float | None:
    interval: Interval | None = cell.combined.get(key)
    return None if interval is None else interval["mean"]


def _written(cell: SchedulerResults, column: Column) -> str:
    interval: Interval | None = cell.combined.get(column.key)
    return UNDEFINED if interval is None else bounded(interval, column)
