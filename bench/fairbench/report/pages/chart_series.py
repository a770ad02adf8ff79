"""Charts with two axes: lines, stacked step areas, and marks with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Floats
from fairbench.report.pages import chart
from fairbench.report.palette import SERIES

# the second number applies if a label is longer
LINE_KEY, LONG_LINE_KEY = chart.Key(27, 14), chart.Key(27, 22, 2)


class Series(NamedTuple):
    """A line through points in ascending x; ``swatch`` chooses one of ``SERIES``."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    swatch: int | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    percent: bool = False,
    shaded: tuple[float, float] | None = None,
) -> str:
    """Draw lines over a common x, from y = 0 up.

    ``percent`` means that y is a share. ``shaded`` is a range of x. Precondition: there is a point,
    and with ``log_x`` all x are positive.
    """
    key = LONG_LINE_KEY if any(len(one.label) > LINE_KEY.most for one in series) else LINE_KEY
    every_x = [x for one in series for x in one.x]
    tallest = 1.0 if percent else max(y for one in series for y in one.y) * 1.05 or 1.0
    across, up = chart.scales(
        len(series),
        chart.log_range(every_x) if log_x else (0.0, max(every_x) or 1.0),
        (0.0, tallest),
        log_x=log_x,
        per_row=key.per_row,
    )
    parts = [chart.shade(across, up, shaded)] if shaded else []
    parts += chart.axes(across, up, x_label, y_label, percent=percent)
    for number, one in enumerate(series):
        look = chart.stroke(number if one.swatch is None else one.swatch)
        parts.append(chart.curve(across, up, zip(one.x, one.y, strict=True), look))
        x, y, name = key.entry(number, one.label)
        parts += [chart.line(x, y, x + 22, y, "series", look), name]
    return chart.drawing(up.start_px + chart.BELOW_PX, title, parts)


KEY_PX = 11
AREA_KEY = chart.Key(KEY_PX + 5, 15)


class Area(NamedTuple):
    """A layer: its values in each bin, and its colour in ``palette.SERIES`` (None: grey)."""

    label: str
    values: Floats
    series: int | None


def area_chart(
    title: str,
    edges: Floats,
    areas: Sequence[Area],
    *,
    x_label: str,
    y_label: str,
    shaded: Sequence[tuple[float, float]] = (),
    x_ticks: chart.Ticks = (),
) -> str:
    """Return a chart of stacked step areas, with the first area at the bottom.

    ``edges`` bound the bins, shape (bins + 1,), in the unit of x; there is at least one area, and
    areas have values of shape (bins,). ``shaded`` are time windows, drawn behind the areas.
    ``x_ticks`` replace the round values of x.
    """
    tallest = float(np.sum([one.values for one in areas], axis=0).max()) * 1.05 or 1.0
    across, up = chart.scales(len(areas), (float(edges[0]), float(edges[-1])), (0.0, tallest))
    parts = [chart.shade(across, up, window) for window in shaded]
    parts += chart.axes(across._replace(given=x_ticks), up, x_label, y_label)
    below = np.zeros(len(edges) - 1)
    x = np.repeat(edges, 2)[1:-1].tolist()
    looks = [
        f'style="fill:{"var(--rest)" if one.series is None else chart.colour(one.series)}"'
        for one in areas
    ]
    for one, look in zip(areas, looks, strict=True):
        above = below + one.values
        # The outline of a layer is its top, then its bottom backwards.
        top = zip(x, np.repeat(above, 2).tolist(), strict=True)
        back = zip(reversed(x), reversed(np.repeat(below, 2).tolist()), strict=True)
        parts.append(f'<polygon points="{chart.places(across, up, (*top, *back))}" {look}/>')
        below = above
    for number, (one, look) in enumerate(zip(areas, looks, strict=True)):
        left, middle, name = AREA_KEY.entry(number, one.label)
        parts += [chart.rect(left, middle - KEY_PX / 2, KEY_PX, KEY_PX, look), name]
    return chart.drawing(up.start_px + chart.BELOW_PX, title, parts)


POINT_KEY = chart.Key(17, 15)
POINTS_PX = 220
MARGIN = 0.06  # margin as a fraction of the range of x, at both ends
# smallest range as a fraction of the largest x, so that small differences look small
LEAST_RANGE = 0.2
# smallest range of an axis that counts: a narrower one would have ticks between whole numbers
LEAST_WHOLE = 3.0
Ends = tuple[float, float] | None


class Point(NamedTuple):
    """A mark, and the ends of its intervals in x and in y; ``hollow`` if it is only a bound."""

    x: float
    y: float
    x_ends: Ends = None
    y_ends: Ends = None
    hollow: bool = False


class PointSeries(NamedTuple):
    """Marks in a series of ``palette.SERIES``, optionally joined by a line."""

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
    log_x: bool = False,
    log_y: bool = False,
    limit: float | None = None,
    whole_x: bool = False,
    x_ticks: chart.Ticks = (),
) -> str:
    """Return the marks of all series, and a line at ``limit`` of y.

    Args:
        series: There is a point in one of them; with ``log_x`` every x is positive, with ``log_y``
            every y.
        whole_x: x counts something, so that ticks are whole numbers and x begins at 0.
        x_ticks: Ticks of x with their labels; without any, round values have one.
    """
    points = [point for one in series for point in one.points]
    every_y = [y for point in points for y in (point.y, *(point.y_ends or ()))]
    every_y += [] if limit is None else [limit]
    low, high = (
        chart.log_range([y for y in every_y if y > 0]) if log_y else (0.0, max(every_y) * 1.05)
    )
    x = chart.log_range([one.x for one in points]) if log_x else _x_range(points, whole_x=whole_x)
    across, up = chart.scales(
        *(len(series), x, (low, high or 1.0)), log_x=log_x, log_y=log_y, plot_px=POINTS_PX
    )
    parts = chart.axes(across._replace(given=x_ticks), up, x_label, y_label)
    if limit is not None:
        parts.append(chart.line(chart.LEFT, up.at(limit), chart.END, up.at(limit), "limit"))
    for number, one in enumerate(series):
        parts += _drawn(one, across, up)
        left, middle, name = POINT_KEY.entry(number, one.label)
        parts += [mark(left + 6, middle, one.series), name]
    return chart.drawing(up.start_px + chart.BELOW_PX, title, parts)


def _x_range(points: Sequence[Point], *, whole_x: bool) -> tuple[float, float]:
    every = [x for point in points for x in (point.x, *(point.x_ends or ()))]
    low, high = min(every), max(every)
    if whole_x:
        return 0.0, max(LEAST_WHOLE, high + 1)
    free = max(MARGIN * (high - low), (LEAST_RANGE * high - (high - low)) / 2) or 1.0
    return max(0.0, low - free), high + free


def _drawn(one: PointSeries, across: chart.Scale, up: chart.Scale) -> list[str]:
    parts = []
    if one.joined:
        points = [(point.x, point.y) for point in one.points]
        parts.append(chart.curve(across, up, points, chart.stroke(one.series)))
    look = f' style="stroke:{chart.colour(one.series)}"'
    for point in one.points:
        x, y = across.at(point.x), up.at(point.y)
        if point.x_ends:
            low, high = (across.at(end) for end in point.x_ends)
            parts.append(chart.line(low, y, high, y, "interval", look))
        if point.y_ends:
            low, high = (up.at(end) for end in point.y_ends)
            parts.append(chart.line(x, low, x, high, "interval", look))
        parts.append(mark(x, y, one.series, hollow=point.hollow))
    return parts


def mark(x: float, y: float, series: int, *, hollow: bool = False, arrow: str = "") -> str:
    """Return the mark of a series at a position, with an arrow for a bound."""
    fill = "none" if hollow else chart.colour(series)
    shape = SERIES[series % len(SERIES)].shape + arrow
    return (
        f'<g class="mark" transform="translate({x:g} {y:g})" '
        f'style="stroke:{chart.colour(series)};fill:{fill}">{shape}</g>'
    )
