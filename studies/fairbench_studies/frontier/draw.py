"""The frontier's picture: completion time, latency and minimum fair share by cell."""

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
TITLE = "Done sooner to the left; below is a shorter wait, above a fairer share"


def draw(found: Outcomes, frozen: Frozen, basis: str) -> Figure:
    """Draw two panels per cell; dominated configurations are hollow."""
    cells = list(found)
    columns = min(COLUMNS, len(cells))
    bands = -(-len(cells) // columns)
    figure, grid = panels(
        2 * bands, columns, max(6.0, columns * PANEL_IN), 1.0 + 2 * bands * HEIGHT_IN
    )
    for number in range(bands * columns):
        upper, lower = (grid[2 * (number // columns) + row][number % columns] for row in (0, 1))
        if number >= len(cells):
            upper.set_axis_off()
            lower.set_axis_off()
            continue
        cell = cells[number]
        _panels(upper, lower, found[cell], frozen)
        upper.set_title(f"{cell} ({cell.part})", fontsize=8)
        if number % columns == 0:
            upper.set_ylabel("P95 of the\nwell-behaved, s", fontsize=7)
            lower.set_ylabel("min. share of best, %", fontsize=7)
        lower.set_xlabel("90% of the programs done, s", fontsize=7)
    notes = (
        "Circles as published, squares capped, triangles tuned. Hollow: another configuration "
        f"dominates it there. {basis[0].upper()}{basis[1:]}."
    )
    caption(figure, TITLE, notes, grid[0][0], columns=len(frozen.pairs))
    return figure


def _panels(
    upper: Axes, lower: Axes, here: Mapping[Configuration, Outcome], frozen: Frozen
) -> None:
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
        upper.plot(at_s, outcome.mean("p95_s"), marker, label=label, **looks)
        lower.plot(at_s, 100 * outcome.mean("share"), marker, **looks)
    log_y(upper)
    for axes in (upper, lower):
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
