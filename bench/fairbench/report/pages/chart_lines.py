"""A chart of lines that differ in colour and dashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fairbench.report.pages.chart import (
    BELOW_PX,
    LEFT,
    PER_ROW,
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
from fairbench.report.table import cut_middle

PLOT_PX = 200
LABEL_CHARACTERS = 14
LONG_PER_ROW, LONG_CHARACTERS = 2, 22  # of a legend with a longer label


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
    long = any(len(one.label) > LABEL_CHARACTERS for one in series)
    per_row = LONG_PER_ROW if long else PER_ROW
    top = legend_height(len(series), per_row) + 24
    bottom = top + PLOT_PX
    every_x = [x for one in series for x in one.x]
    low, high = log_range(every_x) if log_x else (0.0, max(every_x) or 1.0)
    across = Scale(low, high, LEFT, WIDTH - RIGHT, log_x)
    tallest = 1.0 if percent else max(y for one in series for y in one.y) * 1.05 or 1.0
    up = Scale(0.0, tallest, bottom, top)
    parts = []
    if shaded:
        x, end = across.at(shaded[0]), across.at(shaded[1])
        parts.append(
            f'<rect x="{x:g}" y="{top}" width="{end - x:g}" height="{PLOT_PX}" class="shade"/>'
        )
    parts += vertical_axis(up, y_label, percent=percent)
    parts += horizontal_axis(across, top, bottom, x_label)
    for number, one in enumerate(series):
        points = " ".join(
            f"{across.at(x):g},{up.at(y):g}" for x, y in zip(one.x, one.y, strict=True)
        )
        swatch = number if one.swatch is None else one.swatch
        parts.append(f'<polyline points="{points}" {_stroke(swatch)}/>')
        parts += _key(number, swatch, one.label, per_row)
    return drawing(bottom + BELOW_PX, title, parts)


def _stroke(number: int) -> str:
    return f'class="series" style="stroke:{colour(number)}"{dashes(number)}'


def _key(number: int, swatch: int, label: str, per_row: int) -> list[str]:
    """Return a legend entry."""
    x, y = legend_place(number, per_row)
    most = LABEL_CHARACTERS if per_row == PER_ROW else LONG_CHARACTERS
    sample = line(x, y, x + 22, y, "series").replace('class="series"', _stroke(swatch))
    return [sample, text(x + 27, y + 4, cut_middle(label, most))]
