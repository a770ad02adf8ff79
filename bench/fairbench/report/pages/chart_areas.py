"""A chart of stacked areas over time, one for each part of a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Floats
from fairbench.report.names import cut_middle
from fairbench.report.pages.chart import (
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    colour,
    drawing,
    horizontal_axis,
    text,
    vertical_axis,
)

PLOT_PX, BELOW_PX = 200, 44
LEGEND_PX, PER_ROW, LABEL_CHARACTERS = 18, 3, 15
KEY_PX = 11
REST = "var(--rest)"


class Area(NamedTuple):
    """A layer: its values in each bin, and its colour of ``palette.SERIES`` (None: grey)."""

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
) -> str:
    """Return a chart of stacked step areas, with the first area at the bottom.

    Args:
        edges: Bounds of the bins, shape (bins + 1,), in the unit of x.
        areas: At least one, with values of shape (bins,).
        shaded: Windows in x behind the areas.
    """
    top = LEGEND_PX * -(-len(areas) // PER_ROW) + 24
    bottom = top + PLOT_PX
    across = Scale(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    tallest = float(np.sum([one.values for one in areas], axis=0).max()) * 1.05 or 1.0
    up = Scale(0.0, tallest, bottom, top)
    parts = [shade(across, window, top, PLOT_PX) for window in shaded]
    parts += vertical_axis(up, y_label)
    parts += horizontal_axis(across, top, bottom, x_label)
    below = np.zeros(len(edges) - 1)
    for one in areas:
        above = below + one.values
        parts.append(
            f'<polygon points="{_outline(across, up, edges, below, above)}" '
            f'style="fill:{_fill(one)}"/>'
        )
        below = above
    for number, one in enumerate(areas):
        parts += _key(number, one)
    return drawing(bottom + BELOW_PX, title, parts)


def shade(across: Scale, window: tuple[float, float], top: float, height: float) -> str:
    """Return a window in x as a shaded rectangle.

    Args:
        across: Horizontal scale.
        window: Start and end in the unit of x.
        top: Top of the rectangle, in pixels.
        height: Height of the rectangle, in pixels.
    """
    x, end = across.at(window[0]), across.at(window[1])
    return f'<rect x="{x:g}" y="{top:g}" width="{end - x:g}" height="{height:g}" class="shade"/>'


def _outline(across: Scale, up: Scale, edges: Floats, below: Floats, above: Floats) -> str:
    """Return the outline of a layer of a stacked step chart: its top, then its bottom backwards."""
    x = np.repeat(edges, 2)[1:-1].tolist()
    there = zip(x, np.repeat(above, 2).tolist(), strict=True)
    back = zip(reversed(x), reversed(np.repeat(below, 2).tolist()), strict=True)
    return " ".join(f"{across.at(at):g},{up.at(value):g}" for at, value in (*there, *back))


def _fill(area: Area) -> str:
    return REST if area.series is None else colour(area.series)


def _key(number: int, area: Area) -> list[str]:
    """Return an entry of the legend."""
    row, column = divmod(number, PER_ROW)
    x, y = LEFT + column * (WIDTH - LEFT - RIGHT) / PER_ROW, 10 + row * LEGEND_PX
    sample = (
        f'<rect x="{x:g}" y="{y - KEY_PX / 2:g}" width="{KEY_PX}" height="{KEY_PX}" '
        f'style="fill:{_fill(area)}"/>'
    )
    return [sample, text(x + KEY_PX + 5, y + 4, cut_middle(area.label, LABEL_CHARACTERS))]
