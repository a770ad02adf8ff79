"""A chart of marks on one logarithmic scale, a row for each place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairbench.report.pages.chart import (
    RIGHT,
    WIDTH,
    Scale,
    colour,
    drawing,
    horizontal_axis,
    line,
    log_range,
    text,
)

ROW_PX, BELOW_PX, LEGEND_PX = 22, 44, 18
LABELS_PX, LABEL_CHARACTERS = 150, 22
KEYS_PER_ROW, KEY_CHARACTERS = 3, 22
# Around the origin; with the colours, no two of six series look alike in grey.
SHAPES = (
    '<rect x="-4" y="-4" width="8" height="8"/>',
    '<path d="M0-5L5 4H-5Z"/>',
    '<path d="M0-5.5L5.5 0L0 5.5L-5.5 0Z"/>',
    '<circle r="4.5"/>',
    '<path d="M0 5L5-4H-5Z"/>',
    '<path d="M-4-4L4 4M-4 4L4-4"/>',
)
ARROWS = {
    ">": '<path d="M6 0H13M10-3L13 0L10 3"/>',
    "<": '<path d="M-6 0H-13M-10-3L-13 0L-10 3"/>',
}


class Dot(NamedTuple):
    """A positive value of a series; ``sign`` is ">" or "<" where it is only a bound."""

    series: int
    value: float
    sign: str = ""


class Row(NamedTuple):
    """A place and the marks in it."""

    label: str
    dots: Sequence[Dot]


def dot_chart(
    title: str, series: Sequence[str], rows: Sequence[Row], *, x_label: str, reference: float
) -> str:
    """Marks by row, and a line at ``reference``. A bound is an open mark with an arrow.

    Precondition: there is a dot.
    """
    top = LEGEND_PX * -(-len(series) // KEYS_PER_ROW) + 14
    bottom = top + ROW_PX * len(rows)
    low, high = log_range([reference, *(dot.value for row in rows for dot in row.dots)])
    across = Scale(low, high, LABELS_PX, WIDTH - RIGHT, log=True)
    parts = horizontal_axis(across, top, bottom, x_label)
    parts.append(line(across.at(reference), top - 6, across.at(reference), bottom, "axis"))
    for number, row in enumerate(rows):
        y = top + ROW_PX * (number + 0.5)
        parts.append(text(LABELS_PX - 10, y + 4, _cut(row.label, LABEL_CHARACTERS), "end"))
        parts += [_mark(across.at(dot.value), y, dot) for dot in row.dots]
    for number, label in enumerate(series):
        parts += _key(number, label)
    return drawing(bottom + BELOW_PX, title, parts)


def _mark(x: float, y: float, dot: Dot) -> str:
    fill = "none" if dot.sign else colour(dot.series)
    shape = SHAPES[dot.series % len(SHAPES)] + ARROWS.get(dot.sign, "")
    return (
        f'<g class="mark" transform="translate({x:g} {y:g})" '
        f'style="stroke:{colour(dot.series)};fill:{fill}">{shape}</g>'
    )


def _key(number: int, label: str) -> list[str]:
    """An entry of the legend."""
    row, column = divmod(number, KEYS_PER_ROW)
    x, y = 10 + column * (WIDTH - RIGHT) / KEYS_PER_ROW, 10 + row * LEGEND_PX
    return [_mark(x, y, Dot(number, 1.0)), text(x + 10, y + 4, _cut(label, KEY_CHARACTERS))]


def _cut(label: str, characters: int) -> str:
    return label if len(label) <= characters else f"{label[: characters - 1]}…"
