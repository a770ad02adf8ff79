"""Charts as inline SVG, coloured by the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from math import ceil, floor, isinf, isnan, log10
from typing import NamedTuple

import numpy as np

from fairbench.files.times import ClockTime
from fairbench.metrics.records import Floats
from fairbench.report.palette import SERIES
from fairbench.report.table import cut_middle

WIDTH = 520
LEFT, RIGHT = 58, 14
END = WIDTH - RIGHT
PLOT_PX = 200
LINE_PX = 1.8  # width of a series' line in pixels, as in the style sheet
BELOW_PX = 44  # height of a horizontal axis with its label in pixels
# A row of a legend is 18 pixels high and has three entries.
LEGEND_PX, PER_ROW = 18, 3


Ticks = Sequence[tuple[float, str]]
"""The values on an axis at which ticks are drawn, each with a label."""


class Scale(NamedTuple):
    """A linear or logarithmic mapping from values in ``[low, high]`` to pixels.

    ``given`` contains ticks with labels, which replace the ticks at round values.
    """

    low: float
    high: float
    start_px: float
    end_px: float
    log: bool = False
    given: Ticks = ()

    def pixel_of(self, value: float) -> float:
        """Return the pixel of a value; values outside the range are put at the edge."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            part = log10(inside / self.low) / log10(self.high / self.low)
        else:
            part = (inside - self.low) / (self.high - self.low)
        return round(self.start_px + part * (self.end_px - self.start_px), 1)

    def ticks(self) -> list[float]:
        """Return about five round values inside the scale's range."""
        low, high = self.low, self.high
        if self.log:
            decades = range(floor(log10(low)), ceil(log10(high)) + 1)
            width = log10(high / low)  # length of the axis in decades (factors of 10)
            factors = (1,) if width >= 3 else (1, 2, 5) if width >= 1 else (1, 1.5, 2, 3, 5, 7)
            ticks = [factor * 10.0**power for power in decades for factor in factors]
            return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        raw = (high - low) / 5
        power = 10.0 ** floor(log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
        return [round(n * step, 10) for n in range(ceil(low / step), floor(high / step + 1e-9) + 1)]

    def labelled(self) -> Ticks:
        """Return the ticks with labels: the given ticks, or ticks at round values."""
        return self.given or [(tick, tick_text(tick)) for tick in self.ticks()]


def log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return limits of a logarithmic axis for positive values; high is at least twice low."""
    low, high = min(values) * 0.9, max(values) * 1.1
    return (low, high) if high >= 2 * low else (low / 1.5, high * 1.5)


def drawing(height: float, title: str, parts: Sequence[str]) -> str:
    """Return an SVG drawing with a height in pixels, a title and SVG elements."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return an SVG text element with the text ``words`` at a position."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str, look: str = "") -> str:
    """Return an SVG line with the CSS class ``kind`` and the SVG attributes ``look``."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"{look}/>'


def rect(x: float, y: float, width: float, height: float, look: str) -> str:
    """Return an SVG rectangle with the SVG attributes ``look``."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}/>'


def curve(across: Scale, up: Scale, points: Iterable[tuple[float, float]], look: str) -> str:
    """Return an SVG polyline through points, with the SVG attributes ``look``."""
    return f'<polyline points="{point_coordinates(across, up, points)}" class="series"{look}/>'


def point_coordinates(across: Scale, up: Scale, points: Iterable[tuple[float, float]]) -> str:
    """Return the pixel coordinates of points, as the SVG attribute ``points``."""
    return " ".join(f"{across.pixel_of(x):g},{up.pixel_of(y):g}" for x, y in points)


def shade(across: Scale, up: Scale, window: tuple[float, float]) -> str:
    """Return a rectangle that shades a range of x over the whole height of a chart."""
    x, end = across.pixel_of(window[0]), across.pixel_of(window[1])
    return rect(x, up.end_px, end - x, up.start_px - up.end_px, 'class="shade"')


def legend_height(entries: int, per_row: int = PER_ROW) -> int:
    """Return the height of a chart's legend in pixels."""
    return LEGEND_PX * -(-entries // per_row)


class Key(NamedTuple):
    """The layout of a legend: the entries per row, and the place and length of their labels.

    ``left`` is the pixel at which the first entry starts, and ``label_px`` is the distance from an
    entry's start to its label. A label has at most ``most`` characters.
    """

    label_px: float
    most: int
    per_row: int = PER_ROW
    left: float = LEFT

    def entry(self, number: int, label: str) -> tuple[float, float, str]:
        """Return the pixel position (x, y) of a legend entry, and the entry's label as SVG text."""
        row, column = divmod(number, self.per_row)
        x, y = self.left + column * (END - self.left) / self.per_row, 10 + row * LEGEND_PX
        return x, y, text(x + self.label_px, y + 4, cut_middle(label, self.most))


def scales(
    entries: int,
    x: tuple[float, float],
    y: tuple[float, float],
    *,
    log_x: bool = False,
    log_y: bool = False,
    per_row: int = PER_ROW,
    plot_px: float = PLOT_PX,
) -> tuple[Scale, Scale]:
    """Return the scales of the x and y axes of a chart, leaving space for a legend above it."""
    top = legend_height(entries, per_row) + 24
    across = Scale(*x, LEFT, END, log_x)
    return across, Scale(*y, top + plot_px, top, log_y)


def colour(number: int) -> str:
    """Return the colour of series ``number``."""
    return f"var(--c{number % len(SERIES)})"


def stroke(number: int) -> str:
    """Return the SVG attributes of a data series' line: colour and dashes."""
    lengths = SERIES[number % len(SERIES)].dashes
    written = " ".join(f"{length * LINE_PX:.3g}" for length in lengths)
    dashes = f' stroke-dasharray="{written}"' if lengths else ""
    return f' style="stroke:{colour(number)}"{dashes}'


def tick_text(value: float) -> str:
    """Return a short tick label for narrow screens, such as 20k for 20,000."""
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:g}{letter}"
    return f"{value:,g}"


def horizontal_axis(scale: Scale, top: float, bottom: float, label: str) -> list[str]:
    """Return the grid lines, ticks and label of the axis below a chart."""
    parts = [line(scale.start_px, bottom, scale.end_px, bottom, "axis")]
    for tick, label_of_tick in scale.labelled():
        x = scale.pixel_of(tick)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 16, label_of_tick, "middle")]
    return [*parts, text((scale.start_px + scale.end_px) / 2, bottom + 34, label, "middle")]


def vertical_axis(scale: Scale, label: str, *, percent: bool = False) -> list[str]:
    """Return the label, grid lines and ticks of the vertical axis of a chart."""
    parts = [text(4, scale.end_px - 10, label)]
    for tick in scale.ticks():
        y = scale.pixel_of(tick)
        shown = f"{tick:.0%}" if percent else tick_text(tick)
        parts += [line(LEFT, y, END, y, "grid"), text(LEFT - 6, y + 4, shown, "end")]
    return parts


def axes(
    across: Scale, up: Scale, x_label: str, y_label: str, *, percent: bool = False
) -> list[str]:
    """Return both axes of a chart; with ``percent``, the labels of the y axis are percentages."""
    beside = vertical_axis(up, y_label, percent=percent)
    return beside + horizontal_axis(across, up.end_px, up.start_px, x_label)


# ``LINE_KEY`` is a legend for short labels, and ``LONG_LINE_KEY`` is a legend for long labels.
LINE_KEY, LONG_LINE_KEY = Key(27, 14), Key(27, 22, 2)


class Series(NamedTuple):
    """A line through points in ascending x; ``swatch`` is the index of its colour in ``SERIES``."""

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
    """Draw lines over a common x axis, with a y axis that begins at 0.

    If ``percent`` is true, y values are written as percentages. ``shaded`` is a range of x values
    that is drawn with a grey background. At least one series must have a point; with ``log_x``, all
    x must be positive.
    """
    key = LONG_LINE_KEY if any(len(one.label) > LINE_KEY.most for one in series) else LINE_KEY
    every_x = [x for one in series for x in one.x]
    tallest = 1.0 if percent else max(y for one in series for y in one.y) * 1.05 or 1.0
    across, up = scales(
        len(series),
        log_range(every_x) if log_x else (0.0, max(every_x) or 1.0),
        (0.0, tallest),
        log_x=log_x,
        per_row=key.per_row,
    )
    parts = [shade(across, up, shaded)] if shaded else []
    parts += axes(across, up, x_label, y_label, percent=percent)
    for number, one in enumerate(series):
        look = stroke(number if one.swatch is None else one.swatch)
        parts.append(curve(across, up, zip(one.x, one.y, strict=True), look))
        x, y, name = key.entry(number, one.label)
        parts += [line(x, y, x + 22, y, "series", look), name]
    return drawing(up.start_px + BELOW_PX, title, parts)


KEY_PX = 11
AREA_KEY = Key(KEY_PX + 5, 15)


class Area(NamedTuple):
    """An area of a stacked chart, with a value per bin; grey if ``series`` is None."""

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
    x_ticks: Ticks = (),
) -> str:
    """Return a chart of stacked step areas, with the first area at the bottom.

    ``edges`` are the ends of the bins, shape (bins + 1,), in the unit of x. ``areas`` contains at
    least one area, with values of shape (bins,). ``shaded`` lists the periods (start, end) in which
    the chart has a grey background. ``x_ticks`` are drawn on the x axis instead of ticks at round
    values.
    """
    tallest = float(np.sum([one.values for one in areas], axis=0).max()) * 1.05 or 1.0
    across, up = scales(len(areas), (float(edges[0]), float(edges[-1])), (0.0, tallest))
    parts = [shade(across, up, window) for window in shaded]
    parts += axes(across._replace(given=x_ticks), up, x_label, y_label)
    below = np.zeros(len(edges) - 1)
    x = np.repeat(edges, 2)[1:-1].tolist()
    looks = [
        f'style="fill:{"var(--rest)" if one.series is None else colour(one.series)}"'
        for one in areas
    ]
    for one, look in zip(areas, looks, strict=True):
        above = below + one.values
        # The polygon of a layer follows its upper edge, and then its lower edge from right to left.
        top = zip(x, np.repeat(above, 2).tolist(), strict=True)
        back = zip(reversed(x), reversed(np.repeat(below, 2).tolist()), strict=True)
        parts.append(f'<polygon points="{point_coordinates(across, up, (*top, *back))}" {look}/>')
        below = above
    for number, (one, look) in enumerate(zip(areas, looks, strict=True)):
        left, middle, name = AREA_KEY.entry(number, one.label)
        parts += [rect(left, middle - KEY_PX / 2, KEY_PX, KEY_PX, look), name]
    return drawing(up.start_px + BELOW_PX, title, parts)


POINT_KEY = Key(17, 15)
POINTS_PX = 220
MARGIN = 0.06  # The x axis extends beyond the values by this fraction of their range.
# The x axis covers at least a fifth of the largest x, so that small differences look small.
LEAST_RANGE = 0.2
LEAST_WHOLE = 3.0  # An axis of whole numbers has at least this range, to avoid fractional ticks.
Ends = tuple[float, float] | None


class ChartPoint(NamedTuple):
    """A mark in a chart, with optional intervals of its x value and its y value.

    A ``hollow`` mark shows a value that is only a bound.
    """

    x: float
    y: float
    x_ends: Ends = None
    y_ends: Ends = None
    hollow: bool = False


class PointSeries(NamedTuple):
    """Marks in the colour of a series of ``palette.SERIES``, optionally joined by a line."""

    label: str
    series: int
    points: Sequence[ChartPoint]
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
    x_ticks: Ticks = (),
) -> str:
    """Draw the marks of all series, and a horizontal line at y = ``limit``.

    Args:
        series: The series, at least one of which has a point. With ``log_x`` every x must be
            positive, and with ``log_y`` every y.
        whole_x: If True, the x axis begins at 0 and has ticks at whole numbers only.
        x_ticks: The labelled ticks of the x axis; if empty, the ticks are at round values.
    """
    points = [point for one in series for point in one.points]
    every_y = [y for point in points for y in (point.y, *(point.y_ends or ()))]
    every_y += [] if limit is None else [limit]
    low, high = log_range([y for y in every_y if y > 0]) if log_y else (0.0, max(every_y) * 1.05)
    x = log_range([one.x for one in points]) if log_x else _x_range(points, whole_x=whole_x)
    across, up = scales(
        *(len(series), x, (low, high or 1.0)), log_x=log_x, log_y=log_y, plot_px=POINTS_PX
    )
    parts = axes(across._replace(given=x_ticks), up, x_label, y_label)
    if limit is not None:
        parts.append(line(LEFT, up.pixel_of(limit), END, up.pixel_of(limit), "limit"))
    for number, one in enumerate(series):
        parts += _drawn(one, across, up)
        left, middle, name = POINT_KEY.entry(number, one.label)
        parts += [series_mark(left + 6, middle, one.series), name]
    return drawing(up.start_px + BELOW_PX, title, parts)


def _x_range(points: Sequence[ChartPoint], *, whole_x: bool) -> tuple[float, float]:
    every = [x for point in points for x in (point.x, *(point.x_ends or ()))]
    low, high = min(every), max(every)
    if whole_x:
        return 0.0, max(LEAST_WHOLE, high + 1)
    free = max(MARGIN * (high - low), (LEAST_RANGE * high - (high - low)) / 2) or 1.0
    return max(0.0, low - free), high + free


def _drawn(one: PointSeries, across: Scale, up: Scale) -> list[str]:
    parts = []
    if one.joined:
        points = [(point.x, point.y) for point in one.points]
        parts.append(curve(across, up, points, stroke(one.series)))
    look = f' style="stroke:{colour(one.series)}"'
    for point in one.points:
        x, y = across.pixel_of(point.x), up.pixel_of(point.y)
        if point.x_ends:
            low, high = (across.pixel_of(end) for end in point.x_ends)
            parts.append(line(low, y, high, y, "interval", look))
        if point.y_ends:
            low, high = (up.pixel_of(end) for end in point.y_ends)
            parts.append(line(x, low, x, high, "interval", look))
        parts.append(series_mark(x, y, one.series, hollow=point.hollow))
    return parts


def series_mark(x: float, y: float, series: int, *, hollow: bool = False, arrow: str = "") -> str:
    """Return the mark of a series at a position, with an arrow if the value is a bound."""
    fill = "none" if hollow else colour(series)
    shape = SERIES[series % len(SERIES)].shape + arrow
    return (
        f'<g class="mark" transform="translate({x:g} {y:g})" '
        f'style="stroke:{colour(series)};fill:{fill}">{shape}</g>'
    )


CELL_PX, TOP_PX = 17, 24
CELLS_PX, CELL_CHARACTERS = 128, 14
KEYS, KEY_STEP_PX = 4, 94
LEAST = 0.06  # The lowest value in a heat map has this opacity.


class HeatRow(NamedTuple):
    """A row of a heat map: its CSS colour, and a value per bin; bins with NaN have no cell."""

    label: str
    values: Floats
    colour: str


def heat_chart(
    title: str,
    edges: Floats,
    rows: Sequence[HeatRow],
    *,
    x_label: str,
    unit: str,
    limits: tuple[float, float],
    x_ticks: Ticks = (),
) -> str:
    """Draw a heat map, in which the logarithm of a value sets the opacity of its cell.

    ``edges`` are the edges of the bins on the x axis, shape (bins + 1,); each row has values of
    shape (bins,). ``limits`` are the values of the lightest and the darkest colour, both above 0.
    ``x_ticks`` are drawn on the x axis instead of ticks at round values.
    """
    bottom = TOP_PX + CELL_PX * len(rows)
    across = Scale(float(edges[0]), float(edges[-1]), CELLS_PX, END, given=x_ticks)
    parts = horizontal_axis(across, TOP_PX, bottom, x_label)
    for number, row in enumerate(rows):
        y = TOP_PX + CELL_PX * number
        parts.append(text(CELLS_PX - 8, y + 13, cut_middle(row.label, CELL_CHARACTERS), "end"))
        for bin_number, value in enumerate(row.values.tolist()):
            if not isnan(value):
                x, end = across.pixel_of(edges[bin_number]), across.pixel_of(edges[bin_number + 1])
                part = opacity(value, limits)
                look = f'style="fill:{row.colour};opacity:{part:.2f}"'
                parts.append(rect(x, y + 1, max(0.5, end - x), CELL_PX - 2, look))
    return drawing(bottom + BELOW_PX, title, [*parts, *_legend_keys(limits, unit)])


def opacity(value: float, limits: tuple[float, float]) -> float:
    """Return the opacity of a value's colour, from ``LEAST`` to 1."""
    low, high = limits
    if isinf(value) or value >= high:
        return 1.0
    part = log10(max(value, low) / low) / log10(high / low)
    return LEAST + (1 - LEAST) * part


def _legend_keys(limits: tuple[float, float], unit: str) -> list[str]:
    low, high = limits
    parts = []
    for number in range(KEYS):
        value = low * (high / low) ** (number / (KEYS - 1))
        x, part = CELLS_PX + number * KEY_STEP_PX, opacity(value, limits)
        most = "" if number else "up to "
        parts += [
            rect(x, 4, KEY_PX, KEY_PX, f'style="fill:var(--ink);opacity:{part:.2f}"'),
            text(x + KEY_PX + 4, 14, f"{most}{float(f'{value:.2g}'):,g} {unit}"),
        ]
    return parts


ROW_PX = 22
LABELS_PX, ROW_CHARACTERS = 180, 20
DOT_KEY = Key(20, 17, left=0)
ARROWS = {">": '<path d="M6 0H13M10-3L13 0L10 3"/>', "<": '<path d="M-6 0H-13M-10-3L-13 0L-10 3"/>'}


class Dot(NamedTuple):
    """A mark in the dot chart: a positive value, and the number of its series.

    ``sign`` is > or < if the value is a bound, and "" if the value is exact.
    """

    series: int
    value: float
    sign: str = ""


class DotRow(NamedTuple):
    """A row of the dot chart: a name and several marks."""

    label: str
    dots: Sequence[Dot]


def dot_chart(
    title: str, series: Mapping[str, int], rows: Sequence[DotRow], *, x_label: str, reference: float
) -> str:
    """Draw marks in rows on a common x axis, and a vertical line at the value ``reference``.

    A value that is only a bound is drawn as an open mark with an arrow. ``series`` maps the labels
    of the legend to numbers in ``palette.SERIES``. The chart must have at least one dot.
    """
    top = legend_height(len(series)) + 14
    bottom = top + ROW_PX * len(rows)
    low, high = log_range([reference, *(dot.value for row in rows for dot in row.dots)])
    across = Scale(low, high, LABELS_PX, END, log=True)
    parts = horizontal_axis(across, top, bottom, x_label)
    parts.append(
        line(across.pixel_of(reference), top - 6, across.pixel_of(reference), bottom, "axis")
    )
    for number, row in enumerate(rows):
        y = top + ROW_PX * (number + 0.5)
        parts.append(text(LABELS_PX - 10, y + 4, cut_middle(row.label, ROW_CHARACTERS), "end"))
        for dot in row.dots:
            x, arrow = across.pixel_of(dot.value), ARROWS.get(dot.sign, "")
            parts.append(series_mark(x, y, dot.series, hollow=bool(dot.sign), arrow=arrow))
    for position, (label, number) in enumerate(series.items()):
        x, y, name = DOT_KEY.entry(position, label)
        parts += [series_mark(x + 10, y, number), name]
    return drawing(bottom + BELOW_PX, title, parts)


BAR_ROW_PX, BAR_PX, BAR_LABELS_PX, COUNTS_PX = 26, 18, 118, 44


class Bar(NamedTuple):
    """A bar from ``low`` to ``high``, followed by ``text``; ``series`` selects its colour."""

    label: str
    low: float
    high: float
    text: str
    series: int = 0


def bar_chart(title: str, bars: Sequence[Bar], labels_px: float = BAR_LABELS_PX) -> str:
    """Draw a chart with a row for each bar, on a scale from 0 to the largest ``high``."""
    across = Scale(0.0, max(bar.high for bar in bars), labels_px, END - COUNTS_PX)
    bottom = 6 + BAR_ROW_PX * len(bars)
    parts = [line(labels_px, 2, labels_px, bottom, "axis")]
    for number, bar in enumerate(bars):
        y, start, end = 6 + BAR_ROW_PX * number, across.pixel_of(bar.low), across.pixel_of(bar.high)
        look = f'style="fill:var(--c{bar.series})"'
        parts += [
            text(labels_px - 8, y + 13, bar.label, "end"),
            rect(start, y, max(end - start, 0.5), BAR_PX, look),
            text(end + 6, y + 13, bar.text),
        ]
    return drawing(bottom + 6, title, parts)


MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
MOST_TICKS = 6
STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE_S * count for count in (1, 2, 5, 10, 15, 30)),
    *(HOUR_S * count for count in (1, 2, 3, 6, 12)),
    *(DAY_S * count for count in (1, 2, 7, 14, 28, 91, 182, 364)),
)


class TimeAxis(NamedTuple):
    """The label and ticks of a time axis; by default, ticks are at round numbers of seconds."""

    label: str
    ticks: Ticks = ()


def time_axis(
    clock: ClockTime | None, start_s: float, end_s: float, name: str = "time"
) -> TimeAxis:
    """Return the time axis from ``start_s`` to ``end_s`` (seconds), labelled with the log's clock.

    A range shorter than two seconds is labelled in seconds, because it may contain no round time of
    day.
    """
    step_s = next((step for step in STEPS_S if (end_s - start_s) / step <= MOST_TICKS), STEPS_S[-1])
    if clock is None:
        return TimeAxis(f"{name}, s")
    zone = f" {clock.zone}" if clock.zone else ""
    began = datetime.fromisoformat(clock.iso.removesuffix("Z")).replace(tzinfo=None)
    midnight = began.replace(hour=0, minute=0, second=0, microsecond=0)
    since_s = (began - midnight).total_seconds()  # seconds from midnight to time 0 of the chart
    numbers = range(ceil((start_s + since_s) / step_s), floor((end_s + since_s) / step_s) + 1)
    if len(numbers) < 2:
        return TimeAxis(f"{name}, s since {clock.at(0.0)}")
    moments = [midnight + timedelta(seconds=number * step_s) for number in numbers]
    ticks = [
        (number * step_s - since_s, _text(moment, step_s))
        for number, moment in zip(numbers, moments, strict=True)
    ]
    dates = dict.fromkeys(
        f"{began + timedelta(seconds=at_s):%Y-%m-%d}" for at_s in (start_s, end_s)
    )
    return TimeAxis(f"{name}, {' to '.join(dates)}{zone}", ticks)


def _text(moment: datetime, step_s: int) -> str:
    if step_s >= DAY_S or (moment.hour, moment.minute, moment.second) == (0, 0, 0):
        return f"{moment:%m-%d}"
    return f"{moment:%H:%M}" if step_s >= MINUTE_S else f"{moment:%H:%M:%S}"
