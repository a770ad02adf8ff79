"""A chart of rows of cells over time, darker for larger values."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf, isnan, log10
from typing import NamedTuple

from fairbench.metrics.records import Floats
from fairbench.report.names import cut_middle
from fairbench.report.pages.chart import (
    RIGHT,
    WIDTH,
    Scale,
    drawing,
    horizontal_axis,
    text,
)
from fairbench.report.pages.chart_areas import KEY_PX

ROW_PX, BELOW_PX, TOP_PX = 17, 44, 24
LABELS_PX, LABEL_CHARACTERS = 128, 14
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
        parts.append(text(LABELS_PX - 8, y + 13, cut_middle(row.label, LABEL_CHARACTERS), "end"))
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
