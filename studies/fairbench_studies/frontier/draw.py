"""The frontier's picture: completion time, latency and minimum fair share by configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.figures.style import caption, log_y, panels, paper_style
from fairbench_studies.frontier.compare import Outcomes, Relation, relation
from fairbench_studies.frontier.frozen import CAPPED, PUBLISHED, TUNED, Configuration, Frozen
from fairbench_studies.frontier.measures import Outcome
from fairbench_studies.kit.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 5
PANEL_IN, HEIGHT_IN = 2.1, 1.9
MARKERS = {PUBLISHED: "o", CAPPED: "s", TUNED: "^"}
# Colours by Okabe and Ito, in the order of the pairs.
COLOURS = ("#999999", "#56b4e9", "#f0c000", "#009e73", "#cc79a7", "#0072b2", "#d55e00")
LABELS = ("P95 of the\nwell-behaved, s", "min. share of best, %")
TITLES = {
    1: "Done sooner to the left, a shorter wait below",
    2: "Done sooner to the left; below is a shorter wait, above a fairer share",
}


def draw(found: Outcomes, frozen: Frozen, basis: str) -> Figure:
    """Draw a panel of latencies per cell, and one of shares; dominated ones are hollow.

    Shares are left out if every client of every run received all the service due to it.
    """
    cells = list(found)
    columns = min(COLUMNS, len(cells))
    bands = -(-len(cells) // columns)
    rows = 2 if _shares_differ(found) else 1
    height_in = 1.0 + rows * bands * HEIGHT_IN
    figure, grid = panels(rows * bands, columns, max(6.0, columns * PANEL_IN), height_in)
    for number in range(bands * columns):
        own = [grid[rows * (number // columns) + row][number % columns] for row in range(rows)]
        if number >= len(cells):
            for axes in own:
                axes.set_axis_off()
            continue
        cell = cells[number]
        _panels(own, found[cell], frozen)
        own[0].set_title(f"{cell} ({cell.part})", fontsize=8)
        if number % columns == 0:
            for axes, label in zip(own, LABELS, strict=False):
                axes.set_ylabel(label, fontsize=7)
        own[-1].set_xlabel("90% of the programs done, s", fontsize=7)
    notes = (
        "Circles as published, squares capped, triangles tuned. Hollow: another configuration "
        f"dominates it there. {basis[0].upper()}{basis[1:]}."
    )
    caption(figure, TITLES[rows], notes, grid[0][0], columns=len(frozen.pairs))
    return figure


def _shares_differ(found: Outcomes) -> bool:
    return any(one.mean("share") < 1.0 for here in found.values() for one in here.values())


def _panels(own: list[Axes], here: Mapping[Configuration, Outcome], frozen: Frozen) -> None:
    for configuration, outcome in here.items():
        colour = COLOURS[frozen.pairs.index(configuration.pair) % len(COLOURS)]
        label = configuration.pair if configuration.form == PUBLISHED else "_"
        face = "none" if _is_dominated(outcome, here, frozen.margin) else colour
        looks: dict[str, Any] = {
            "color": colour,
            "markerfacecolor": face,
            "linestyle": "",
            "markersize": 5,
        }
        at_s = outcome.mean("to_90_s")
        marker = MARKERS[configuration.form]
        own[0].plot(at_s, outcome.mean("p95_s"), marker, label=label, **looks)
        for axes in own[1:]:
            axes.plot(at_s, 100 * outcome.mean("share"), marker, **looks)
    log_y(own[0])
    for axes in own:
        axes.tick_params(labelsize=6)


def _is_dominated(outcome: Outcome, here: Mapping[Configuration, Outcome], margin: float) -> bool:
    return any(
        relation(other, outcome, margin) is Relation.DOMINATES
        for other in here.values()
        if other is not outcome
    )


def plot(
    found: Outcomes, frozen: Frozen, basis: str, output: Path, formats: Sequence[str]
) -> list[Path]:
    """Draw the picture into a folder; return the files. Raises UsageError on failure."""
    with paper_style():
        return write_figure(draw(found, frozen, basis), output, frozen.name, formats)
