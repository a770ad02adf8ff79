"""Charts of marks: in two dimensions with their intervals, or on one scale, a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairbench.report.pages.chart import (
    BELOW_PX,
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    colour,
    dashes,
    drawing,
    horizontal_axis,
    legend_height,
    legend_place,
    line,
    log_range,
    text,
    vertical_axis,
)
from fairbench.report.palette import SERIES
from fairbench.report.table import cut_middle

PLOT_PX = 220
LABEL_CHARACTERS = 15
MARGIN = 0.06  # of the range of x, free at both ends
LEAST_RANGE = 0.2  # of the largest x, so that small differences look small
LEAST_WHOLE = 3.0  # of an axis that counts: a narrower one would have ticks between counts
Ends = tuple[float, float] | None


class Point(NamedTuple):
    """A mark, and the ends of its intervals in x and in y; ``hollow`` if it is only a bound."""

    x: float
    y: float
    x_ends: Ends = None
    y_ends: Ends = None
    hollow: bool = False


class PointSeries(NamedTuple):
    """Marks of one of ``palette.SERIES``, perhaps joined by a line."""

    label: str
    series: int
    points: Sequence[Point]
    joined: bool = False


def point_chart(
    title: str,
    series: Sequence[PointSeries],
    *,
    x_label: str,
    y_label: str,
    log_y: bool = False,
    limit: float | None = None,
    whole_x: bool = False,
) -> str:
    """Return the marks of all series, and a line at ``limit`` of y.

    Args:
        series: There is a point in one of them; with ``log_y`` every y is positive.
        whole_x: x counts something, so that ticks are whole numbers and x begins at 0.
    """
    top = legend_height(len(series)) + 24
    bottom = top + PLOT_PX
    points = [point for one in series for point in one.points]
    across = Scale(*_x_range(points, whole_x=whole_x), LEFT, WIDTH - RIGHT)
    every_y = [y for point in points for y in (point.y, *(point.y_ends or ()))]
    every_y += [] if limit is None else [limit]
    low, high = log_range([y for y in every_y if y > 0]) if log_y else (0.0, max(every_y) * 1.05)
    up = Scale(low, high or 1.0, bottom, top, log_y)
    parts = vertical_axis(up, y_label) + horizontal_axis(across, top, bottom, x_label)
    if limit is not None:
        parts.append(line(LEFT, up.at(limit), WIDTH - RIGHT, up.at(limit), "limit"))
    for number, one in enumerate(series):
        parts += _drawn(one, across, up)
        parts += _key(number, one)
    return drawing(bottom + BELOW_PX, title, parts)


def _x_range(points: Sequence[Point], *, whole_x: bool) -> tuple[float, float]:
    every = [x for point in points for x in (point.x, *(point.x_ends or ()))]
    low, high = min(every), max(every)
    if whole_x:
        return 0.0, max(LEAST_WHOLE, high + 1)
    free = max(MARGIN * (high - low), (LEAST_RANGE * high - (high - low)) / 2) or 1.0
    return max(0.0, low - free), high + free


def _drawn(one: PointSeries, across: Scale, up: Scale) -> list[str]:
    parts = []
    if one.joined:
        places = " ".join(f"{across.at(point.x):g},{up.at(point.y):g}" for point in one.points)
        style = f'style="stroke:{colour(one.series)}"{dashes(one.series)}'
        parts.append(f'<polyline points="{places}" class="series" {style}/>')
    for point in one.points:
        x, y = across.at(point.x), up.at(point.y)
        ends = []
        if point.x_ends:
            low, high = (across.at(end) for end in point.x_ends)
            ends.append(line(low, y, high, y, "interval"))
        if point.y_ends:
            low, high = (up.at(end) for end in point.y_ends)
            ends.append(line(x, low, x, high, "interval"))
        own = f'class="interval" style="stroke:{colour(one.series)}"'
        parts += [end.replace('class="interval"', own) for end in ends]
        parts.append(mark(x, y, one.series, hollow=point.hollow))
    return parts


def mark(x: float, y: float, series: int, *, hollow: bool = False, arrow: str = "") -> str:
    """Return the mark of a series at a place, perhaps with an arrow of a bound."""
    fill = "none" if hollow else colour(series)
    shape = SERIES[series % len(SERIES)].shape + arrow
    return (
        f'<g class="mark" transform="translate({x:g} {y:g})" '
        f'style="stroke:{colour(series)};fill:{fill}">{shape}</g>'
    )


def _key(number: int, one: PointSeries) -> list[str]:
    """Return an entry of the legend."""
    x, y = legend_place(number)
    return [
        mark(x + 6, y, one.series),
        text(x + 17, y + 4, cut_middle(one.label, LABEL_CHARACTERS)),
    ]


ROW_PX = 22
LABELS_PX, ROW_CHARACTERS, KEY_CHARACTERS = 180, 20, 17
ARROWS = {
    ">": '<path d="M6 0H13M10-3L13 0L10 3"/>',
    "<": '<path d="M-6 0H-13M-10-3L-13 0L-10 3"/>',
}


class Dot(NamedTuple):
    """A positive value of one of ``palette.SERIES``; ``sign`` is ">" or "<" for a bound."""

    series: int
    value: float
    sign: str = ""


class DotRow(NamedTuple):
    """A row of the chart and the marks in it."""

    label: str
    dots: Sequence[Dot]


def dot_chart(
    title: str, series: Mapping[str, int], rows: Sequence[DotRow], *, x_label: str, reference: float
) -> str:
    """Draw marks by row, and a line at ``reference``. A bound is an open mark with an arrow.

    ``series`` maps legend labels to numbers in ``palette.SERIES``. Precondition: there is at least
    one dot.
    """
    top = legend_height(len(series)) + 14
    bottom = top + ROW_PX * len(rows)
    low, high = log_range([reference, *(dot.value for row in rows for dot in row.dots)])
    across = Scale(low, high, LABELS_PX, WIDTH - RIGHT, log=True)
    parts = horizontal_axis(across, top, bottom, x_label)
    parts.append(line(across.at(reference), top - 6, across.at(reference), bottom, "axis"))
    for number, row in enumerate(rows):
        y = top + ROW_PX * (number + 0.5)
        parts.append(text(LABELS_PX - 10, y + 4, cut_middle(row.label, ROW_CHARACTERS), "end"))
        parts += [_dot(across.at(dot.value), y, dot) for dot in row.dots]
    for position, (label, number) in enumerate(series.items()):
        x, y = legend_place(position, left=0)
        name = text(x + 20, y + 4, cut_middle(label, KEY_CHARACTERS))
        parts += [_dot(x + 10, y, Dot(number, 1.0)), name]
    return drawing(bottom + BELOW_PX, title, parts)


def _dot(x: float, y: float, dot: Dot) -> str:
    return mark(x, y, dot.series, hollow=bool(dot.sign), arrow=ARROWS.get(dot.sign, ""))
