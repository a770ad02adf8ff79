"""A chart of many marks in two dimensions, with a label beside each mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from fairbench.report.pages import chart

TOP, PLOT_PX, BELOW_PX = 24, 330, 44
RADIUS = 3.0
MARGIN = 0.06  # margin as a fraction of a linear range, at both ends
LETTER_PX, TEXT_PX = 8.8, 13.0  # a letter's largest width and height on a phone
# step between tried distances of a label from its mark, and number of steps
STEP_PX, MOST_STEPS = 4.0, 16
# a leader line joins a label to its mark if they are at least this many steps apart
LEADER_FROM = 2


class Labelled(NamedTuple):
    """A mark with a label; ``strong`` marks are coloured."""

    label: str
    x: float
    y: float
    strong: bool = False


class PlotAxis(NamedTuple):
    """An axis with its values; a ``log`` axis is logarithmic, for positive values."""

    label: str
    log: bool = False


class Box(NamedTuple):
    """The position of a label or a mark, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether two boxes overlap."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def rank_chart(title: str, marks: Sequence[Labelled], x_axis: PlotAxis, y_axis: PlotAxis) -> str:
    """Draw the marks; each label moves away from its mark until no labels overlap.

    Precondition: there is at least one mark.
    """
    bottom = TOP + PLOT_PX
    across = chart.Scale(
        *_axis_range([one.x for one in marks], x_axis), chart.LEFT, chart.END, x_axis.log
    )
    up = chart.Scale(*_axis_range([one.y for one in marks], y_axis), bottom, TOP, y_axis.log)
    parts = chart.vertical_axis(up, y_axis.label)
    parts += chart.horizontal_axis(across, TOP, bottom, x_axis.label)
    spots = [(across.pixel_of(one.x), up.pixel_of(one.y)) for one in marks]
    taken = [Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in spots]
    frame = Box(chart.LEFT, TOP, chart.END, bottom)
    leaders, drawn = [], []
    for one, (x, y) in zip(marks, spots, strict=True):
        box, steps = free_box(x, y, LETTER_PX * len(one.label), taken, frame)
        taken.append(box)
        middle = (box.left + box.right) / 2
        if steps >= LEADER_FROM:
            leaders.append(chart.line(x, y, middle, (box.top + box.bottom) / 2, "leader"))
        kind = "dot strong" if one.strong else "dot"
        drawn.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS:g}" class="{kind}"/>'
            + chart.text(middle, box.bottom - 2, one.label, "middle")
        )
    return chart.drawing(bottom + BELOW_PX, title, [*parts, *leaders, *drawn])


def _axis_range(values: Sequence[float], axis: PlotAxis) -> tuple[float, float]:
    if axis.log:
        return chart.log_range(values)
    low, high = min(values), max(values)
    free = MARGIN * (high - low) or abs(high) / 10 or 1.0
    return low - free, high + free


def free_box(x: float, y: float, wide: float, taken: Sequence[Box], frame: Box) -> tuple[Box, int]:
    """Return the nearest free box for a label, and the distance from the mark in steps."""
    for steps, box in _boxes(x, y, wide):
        inside = box.left > frame.left and box.right < frame.right
        inside = inside and box.top > frame.top and box.bottom < frame.bottom
        if inside and not any(box.meets(other) for other in taken):
            return box, steps
    return Box(x + RADIUS, y - TEXT_PX / 2, x + RADIUS + wide, y + TEXT_PX / 2), 0


def _boxes(x: float, y: float, wide: float) -> Iterator[tuple[int, Box]]:
    """Yield boxes around a mark: right, left, above, below and corners, at increasing distances."""
    sides = sorted(product((1, -1, 0), (0, -1, 1)), key=lambda side: abs(side[0]) + abs(side[1]))
    for steps in range(1, MOST_STEPS):
        far = RADIUS + STEP_PX * (steps - 1) + 1
        for right, down in sides[1:]:
            middle_x = x + right * (far + wide / 2)
            middle_y = y + down * (far + TEXT_PX / 2)
            yield (
                steps,
                Box(
                    *(middle_x - wide / 2, middle_y - TEXT_PX / 2),
                    *(middle_x + wide / 2, middle_y + TEXT_PX / 2),
                ),
            )
