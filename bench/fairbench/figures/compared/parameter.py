"""A picture of metrics against a parameter of a scheduler that a sweep varied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairbench.figures.compared.draw import WIDTH_IN, bar_metrics, interval, provenance_of
from fairbench.figures.style import caption, panels, styles_of
from fairbench.results.comparison import SchedulerResults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROW_IN = 2.4
VALUE = re.compile(r" (\S+)=([-+]?[\d.]+(?:e[-+]?\d+)?)(?= |$)")


class Swept(NamedTuple):
    """A scheduler's label without the swept parameter, the parameter, and its value."""

    scheduler: str
    parameter: str
    value: float


def swept(cells: Sequence[SchedulerResults]) -> dict[int, Swept]:
    """Return the swept parameter of each cell by index; empty unless one has two values."""
    found = {}
    for index, cell in enumerate(cells):
        matches = list(VALUE.finditer(cell.scheduler))
        if len(matches) == 1:
            one = matches[0]
            rest = cell.scheduler.replace(one[0], "")
            found[index] = Swept(rest, one[1], float(one[2]))
    several = {(one.parameter, one.value) for one in found.values()}
    one_parameter = len({parameter for parameter, _ in several}) == 1
    return found if one_parameter and len(several) > 1 else {}


def against_parameter(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw throughput, fairness and latency against the swept parameter, with 95% intervals."""
    found = swept(cells)
    metrics, styles = bar_metrics(cells), styles_of(dict.fromkeys(one[0] for one in found.values()))
    places = list(dict.fromkeys(cells[index].place for index in found))
    figure, axes = panels(len(places), len(metrics), WIDTH_IN, 0.9 + ROW_IN * len(places))
    for row, place in zip(axes, places, strict=True):
        for axis, (key, (label, unit)) in zip(row, metrics.items(), strict=True):
            for scheduler, style in styles.items():
                points = sorted(
                    (one.value, *shown)
                    for index, one in found.items()
                    if cells[index].place == place and one.scheduler == scheduler
                    if (shown := interval(cells[index], key, unit)) is not None
                )
                if points:
                    at, mean, low, high = zip(*points, strict=True)
                    arms = (
                        [m - a for m, a in zip(mean, low, strict=True)],
                        [b - m for m, b in zip(mean, high, strict=True)],
                    )
                    axis.errorbar(
                        at, mean, yerr=arms, color=style.colour, marker=style.marker,
                        linestyle=style.line, label=style.label, elinewidth=0.8,
                    )  # fmt: skip
            axis.set(xlabel=next(iter(found.values())).parameter, ylabel=label, ylim=(0, None))
        row[0].set_title(place, loc="left", fontsize=9)
    caption(figure, "Metrics against the parameter", provenance_of(cells), axes[0][0])
    return figure
