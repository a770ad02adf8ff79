"""Charts with a row for each label: cells by value over time, marks on one scale, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, isnan, log10
from typing import NamedTuple

from fairbench.metrics.records import Floats
from fairbench.report.pages import chart
from fairbench.report.pages.chart_series import KEY_PX, mark
from fairbench.report.table import cut_middle

CELL_PX, TOP_PX = 17, 24
CELLS_PX, CELL_CHARACTERS = 128, 14
KEYS, KEY_STEP_PX = 4, 94
LEAST = 0.06  # opacity for the lowest value


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
    x_ticks: chart.Ticks = (),
) -> str:
    """Return cells whose opacity is the logarithm of their value, between two limits.

    ``edges`` bound the bins, shape (bins + 1,), in the unit of x; rows have values of shape
    (bins,). ``limits`` are the values of the lightest cell and of the darkest, above 0. ``x_ticks``
    replace the round values of x.
    """
    bottom = TOP_PX + CELL_PX * len(rows)
    across = chart.Scale(float(edges[0]), float(edges[-1]), CELLS_PX, chart.END, given=x_ticks)
    parts = chart.horizontal_axis(across, TOP_PX, bottom, x_label)
    for number, row in enumerate(rows):
        y = TOP_PX + CELL_PX * number
        parts.append(
            chart.text(CELLS_PX - 8, y + 13, cut_middle(row.label, CELL_CHARACTERS), "end")
        )
        for bin_number, value in enumerate(row.values.tolist()):
            if not isnan(value):
                x, end = across.at(edges[bin_number]), across.at(edges[bin_number + 1])
                part = opacity(value, limits)
                look = f'style="fill:{row.colour};opacity:{part:.2f}"'
                parts.append(chart.rect(x, y + 1, max(0.5, end - x), CELL_PX - 2, look))
    return chart.drawing(bottom + chart.BELOW_PX, title, [*parts, *_keys(limits, unit)])


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
        x, part = CELLS_PX + number * KEY_STEP_PX, opacity(value, limits)
        most = "" if number else "up to "
        parts += [
            chart.rect(x, 4, KEY_PX, KEY_PX, f'style="fill:var(--ink);opacity:{part:.2f}"'),
            chart.text(x + KEY_PX + 4, 14, f"{most}{float(f'{value:.2g}'):,g} {unit}"),
        ]
    return parts


ROW_PX = 22
LABELS_PX, ROW_CHARACTERS = 180, 20
DOT_KEY = chart.Key(20, 17, left=0)
ARROWS = {">": '<path d="M6 0H13M10-3L13 0L10 3"/>', "<": '<path d="M-6 0H-13M-10-3L-13 0L-10 3"/>'}


class Dot(NamedTuple):
    """A positive value in a series of ``palette.SERIES``; ``sign`` is ">" or "<" for a bound."""

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
    top = chart.legend_height(len(series)) + 14
    bottom = top + ROW_PX * len(rows)
    low, high = chart.log_range([reference, *(dot.value for row in rows for dot in row.dots)])
    across = chart.Scale(low, high, LABELS_PX, chart.END, log=True)
    parts = chart.horizontal_axis(across, top, bottom, x_label)
    parts.append(chart.line(across.at(reference), top - 6, across.at(reference), bottom, "axis"))
    for number, row in enumerate(rows):
        y = top + ROW_PX * (number + 0.5)
        parts.append(
            chart.text(LABELS_PX - 10, y + 4, cut_middle(row.label, ROW_CHARACTERS), "end")
        )
        for dot in row.dots:
            x, arrow = across.at(dot.value), ARROWS.get(dot.sign, "")
            parts.append(mark(x, y, dot.series, hollow=bool(dot.sign), arrow=arrow))
    for position, (label, number) in enumerate(series.items()):
        x, y, name = DOT_KEY.entry(position, label)
        parts += [mark(x + 10, y, number), name]
    return chart.drawing(bottom + chart.BELOW_PX, title, parts)


BAR_ROW_PX, BAR_PX, BAR_LABELS_PX, COUNTS_PX = 26, 18, 118, 44


def bar_chart(title: str, rows: Sequence[tuple[str, int]]) -> str:
    """Return a bar for each label, with its count beside it."""
    most = max(count for _, count in rows)
    across = chart.Scale(0.0, float(most), BAR_LABELS_PX, chart.END - COUNTS_PX)
    bottom = 6 + BAR_ROW_PX * len(rows)
    parts = [chart.line(BAR_LABELS_PX, 2, BAR_LABELS_PX, bottom, "axis")]
    for number, (label, count) in enumerate(rows):
        y, end = 6 + BAR_ROW_PX * number, across.at(count)
        parts += [
            chart.text(BAR_LABELS_PX - 8, y + 13, label, "end"),
            chart.rect(BAR_LABELS_PX, y, end - BAR_LABELS_PX, BAR_PX, 'style="fill:var(--c0)"'),
            chart.text(end + 6, y + 13, f"{count:,}"),
        ]
    return chart.drawing(bottom + 6, title, parts)
