"""A chart of marks on one logarithmic scale, a row for each configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairbench.report.names import cut_middle
from fairbench.report.pages.chart import (
    RIGHT,
    WIDTH,
    Scale,
    drawing,
    horizontal_axis,
    line,
    log_range,
    text,
)
from fairbench.report.pages.chart_points import mark

ROW_PX, BELOW_PX, LEGEND_PX = 22, 44, 18
LABELS_PX, LABEL_CHARACTERS = 180, 20
KEYS_PER_ROW, KEY_CHARACTERS = 3, 17
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
    top = LEGEND_PX * -(-len(series) // KEYS_PER_ROW) + 14
    bottom = top + ROW_PX * len(rows)
    low, high = log_range([reference, *(dot.value for row in rows for dot in row.dots)])
    across = Scale(low, high, LABELS_PX, WIDTH - RIGHT, log=True)
    parts = horizontal_axis(across, top, bottom, x_label)
    parts.append(line(across.at(reference), top - 6, across.at(reference), bottom, "axis"))
    for number, row in enumerate(rows):
        y = top + ROW_PX * (number + 0.5)
        parts.append(text(LABELS_PX - 10, y + 4, cut_middle(row.label, LABEL_CHARACTERS), "end"))
        parts += [_mark(across.at(dot.value), y, dot) for dot in row.dots]
    for position, (label, number) in enumerate(series.items()):
        parts += _key(position, number, label)
    return drawing(bottom + BELOW_PX, title, parts)


def _mark(x: float, y: float, dot: Dot) -> str:
    return mark(x, y, dot.series, hollow=bool(dot.sign), arrow=ARROWS.get(dot.sign, ""))


def _key(position: int, number: int, label: str) -> list[str]:
    """Return a legend entry."""
    row, column = divmod(position, KEYS_PER_ROW)
    x, y = 10 + column * (WIDTH - RIGHT) / KEYS_PER_ROW, 10 + row * LEGEND_PX
    return [_mark(x, y, Dot(number, 1.0)), text(x + 10, y + 4, cut_middle(label, KEY_CHARACTERS))]
