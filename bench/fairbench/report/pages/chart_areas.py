"""Charts over time: stacked areas, one for each part of a whole, and rows of cells by value."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, isnan, log10
from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import Floats
from fairbench.report.pages.chart import (
    BELOW_PX,
    LEFT,
    RIGHT,
    WIDTH,
    Scale,
    colour,
    drawing,
    horizontal_axis,
    legend_height,
    legend_place,
    text,
    vertical_axis,
)
from fairbench.report.table import cut_middle

PLOT_PX = 200
LABEL_CHARACTERS = 15
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
    top = legend_height(len(areas)) + 24
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
    """Return a window in x as a shaded rectangle."""
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
    x, y = legend_place(number)
    sample = (
        f'<rect x="{x:g}" y="{y - KEY_PX / 2:g}" width="{KEY_PX}" height="{KEY_PX}" '
        f'style="fill:{_fill(area)}"/>'
    )
    return [sample, text(x + KEY_PX + 5, y + 4, cut_middle(area.label, LABEL_CHARACTERS))]


ROW_PX, TOP_PX = 17, 24
LABELS_PX, ROW_CHARACTERS = 128, 14
KEYS, KEY_STEP_PX = 4, 94
LEAST = 0.06  # opacity of the least value, of 1


class HeatRow(NamedTuple):
    """A row: a value in each bin (NaN for none), and its CSS colour."""

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
) -> str:
    """Return cells whose opacity is the logarithm of their value, between two limits.

    Args:
        edges: Bounds of the bins, shape (bins + 1,), in the unit of x.
        rows: With values of shape (bins,).
        limits: The value of the lightest cell and of the darkest, above 0.
    """
    bottom = TOP_PX + ROW_PX * len(rows)
    across = Scale(float(edges[0]), float(edges[-1]), LABELS_PX, WIDTH - RIGHT)
    parts = horizontal_axis(across, TOP_PX, bottom, x_label)
    for number, row in enumerate(rows):
        y = TOP_PX + ROW_PX * number
        parts.append(text(LABELS_PX - 8, y + 13, cut_middle(row.label, ROW_CHARACTERS), "end"))
        for bin_number, value in enumerate(row.values.tolist()):
            if not isnan(value):
                x, end = across.at(edges[bin_number]), across.at(edges[bin_number + 1])
                part = opacity(value, limits)
                parts.append(
                    f'<rect x="{x:g}" y="{y + 1}" width="{max(0.5, end - x):g}" '
                    f'height="{ROW_PX - 2}" style="fill:{row.colour};opacity:{part:.2f}"/>'
                )
    return drawing(bottom + BELOW_PX, title, [*parts, *_keys(limits, unit)])


def opacity(value: float, limits: tuple[float, float]) -> float:
    """Return the opacity of a value, from ``LEAST`` to 1."""
    low, high = limits
    if isinf(value) or value >= high:
        return 1.0
    part = log10(max(value, low) / low) / log10(high / low)
    return LEAST + (1 - LEAST) * part


def _keys(limits: tuple[float, float], unit: str) -> list[str]:
    """Return the legend: a few values, from the lightest to the strongest."""
    low, high = limits
    parts = []
    for number in range(KEYS):
        value = low * (high / low) ** (number / (KEYS - 1))
        x = LABELS_PX + number * KEY_STEP_PX
        parts += [
            f'<rect x="{x}" y="4" width="{KEY_PX}" height="{KEY_PX}" '
            f'style="fill:var(--ink);opacity:{opacity(value, limits):.2f}"/>',
            text(x + KEY_PX + 4, 14, f"{float(f'{value:.2g}'):,g} {unit}"),
        ]
    return parts
