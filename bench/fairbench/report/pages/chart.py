"""Small charts as inline SVG, coloured by the page's style sheet: scales, ticks, axes, legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

from fairbench.report.palette import SERIES
from fairbench.report.table import cut_middle

WIDTH = 520
LEFT, RIGHT = 58, 14
END = WIDTH - RIGHT
PLOT_PX = 200
LINE_PX = 1.8  # width of a series, as in the style sheet
BELOW_PX = 44  # space for an axis with its label
LEGEND_PX, PER_ROW = 18, 3  # height of a row of a legend, and its entries


Ticks = Sequence[tuple[float, str]]
"""Values of an axis, each with its label."""


class Scale(NamedTuple):
    """A mapping from values in ``[low, high]`` to pixels, linear or logarithmic.

    ``given`` are its ticks with their labels; without any, the ticks are round values.
    """

    low: float
    high: float
    start_px: float
    end_px: float
    log: bool = False
    given: Ticks = ()

    def at(self, value: float) -> float:
        """Return the pixel of a value; values outside the range lie on the edge."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            part = log10(inside / self.low) / log10(self.high / self.low)
        else:
            part = (inside - self.low) / (self.high - self.low)
        return round(self.start_px + part * (self.end_px - self.start_px), 1)

    def ticks(self) -> list[float]:
        """Return about five round values inside the range."""
        low, high = self.low, self.high
        if self.log:
            decades = range(floor(log10(low)), ceil(log10(high)) + 1)
            width = log10(high / low)  # width in decades
            factors = (1,) if width >= 3 else (1, 2, 5) if width >= 1 else (1, 1.5, 2, 3, 5, 7)
            ticks = [factor * 10.0**power for power in decades for factor in factors]
            return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        raw = (high - low) / 5
        power = 10.0 ** floor(log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
        return [round(n * step, 10) for n in range(ceil(low / step), floor(high / step + 1e-9) + 1)]

    def labelled(self) -> Ticks:
        """Return the given ticks, or the round values, each with its label."""
        return self.given or [(tick, tick_text(tick)) for tick in self.ticks()]


def log_range(values: Sequence[float]) -> tuple[float, float]:
    """Return limits of a logarithmic scale around positive values, at least 2x apart."""
    low, high = min(values) * 0.9, max(values) * 1.1
    return (low, high) if high >= 2 * low else (low / 1.5, high * 1.5)


def drawing(height: float, title: str, parts: Sequence[str]) -> str:
    """Return the SVG of all parts."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )


def text(x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return text at a position."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str, look: str = "") -> str:
    """Return a straight line with a class of the style sheet, and more attributes."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"{look}/>'


def rect(x: float, y: float, width: float, height: float, look: str) -> str:
    """Return a rectangle with the attributes ``look``."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {look}/>'


def curve(across: Scale, up: Scale, points: Iterable[tuple[float, float]], look: str) -> str:
    """Return a line of a series through points."""
    return f'<polyline points="{places(across, up, points)}" class="series"{look}/>'


def places(across: Scale, up: Scale, points: Iterable[tuple[float, float]]) -> str:
    """Return the pixels of points."""
    return " ".join(f"{across.at(x):g},{up.at(y):g}" for x, y in points)


def shade(across: Scale, up: Scale, window: tuple[float, float]) -> str:
    """Return a window in x as a shaded rectangle over the height of a chart."""
    x, end = across.at(window[0]), across.at(window[1])
    return rect(x, up.end_px, end - x, up.start_px - up.end_px, 'class="shade"')


def legend_height(entries: int, per_row: int = PER_ROW) -> int:
    """Return the height of a legend in pixels."""
    return LEGEND_PX * -(-entries // per_row)


class Key(NamedTuple):
    """The form of a legend: entries in a row, and the position and length of their labels.

    ``left`` is the start of the first entry, ``label_px`` the distance from there to its label, and
    ``most`` the limit on a label's characters.
    """

    label_px: float
    most: int
    per_row: int = PER_ROW
    left: float = LEFT

    def entry(self, number: int, label: str) -> tuple[float, float, str]:
        """Return the position of an entry's sample by the entry's number, and of its label."""
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
    """Return the scales of a chart below a legend, for ranges of x and y."""
    top = legend_height(entries, per_row) + 24
    across = Scale(*x, LEFT, END, log_x)
    return across, Scale(*y, top + plot_px, top, log_y)


def colour(number: int) -> str:
    """Return the colour of the series with this number."""
    return f"var(--c{number % len(SERIES)})"


def stroke(number: int) -> str:
    """Return the attributes of this series' line: its colour and dashes."""
    lengths = SERIES[number % len(SERIES)].dashes
    written = " ".join(f"{length * LINE_PX:.3g}" for length in lengths)
    dashes = f' stroke-dasharray="{written}"' if lengths else ""
    return f' style="stroke:{colour(number)}"{dashes}'


def tick_text(value: float) -> str:
    """Return a tick label, such as 20k for 20,000, that fits on a phone."""
    for least, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / unit:g}{letter}"
    return f"{value:,g}"


def horizontal_axis(scale: Scale, top: float, bottom: float, label: str) -> list[str]:
    """Return the grid, ticks and label below a chart."""
    parts = [line(scale.start_px, bottom, scale.end_px, bottom, "axis")]
    for tick, label_of_tick in scale.labelled():
        x = scale.at(tick)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 16, label_of_tick, "middle")]
    return [*parts, text((scale.start_px + scale.end_px) / 2, bottom + 34, label, "middle")]


def vertical_axis(scale: Scale, label: str, *, percent: bool = False) -> list[str]:
    """Return the grid and ticks beside a chart, with its label above them."""
    parts = [text(4, scale.end_px - 10, label)]
    for tick in scale.ticks():
        y = scale.at(tick)
        shown = f"{tick:.0%}" if percent else tick_text(tick)
        parts += [line(LEFT, y, END, y, "grid"), text(LEFT - 6, y + 4, shown, "end")]
    return parts


def axes(
    across: Scale, up: Scale, x_label: str, y_label: str, *, percent: bool = False
) -> list[str]:
    """Return both axes of a chart; ``percent`` is for ticks of y."""
    beside = vertical_axis(up, y_label, percent=percent)
    return beside + horizontal_axis(across, up.end_px, up.start_px, x_label)
