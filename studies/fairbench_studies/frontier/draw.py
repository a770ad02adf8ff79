"""The picture of the frontier study: completion time, latency and minimum fair share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from fairbench_papers.style import caption, log_x, log_y, panels, paper_style
from fairbench_studies.frontier.compare import Outcomes, Relation, relation
from fairbench_studies.frontier.frozen import CAPPED, PUBLISHED, TUNED, Configuration, Frozen
from fairbench_studies.frontier.measures import FAIRNESS, Outcome
from fairbench_studies.kit.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 5
MOST_CELLS = 6  # With more configurations, panels are shared, so that markers do not overlap.
PANEL_IN, HEIGHT_IN = 2.1, 1.9
MARKERS = {PUBLISHED: "o", CAPPED: "s", TUNED: "^"}
# Each scheduler pair has its own colour from the palette of Okabe and Ito.
COLOURS = ("#999999", "#56b4e9", "#f0c000", "#009e73", "#cc79a7", "#0072b2", "#d55e00")
LABELS = ("P95 of the\nwell-behaved, s", "min. fair share of best, %")
OF_LIMIT = "service, % of the limit"
CURVE = " The black curve is the most service that any scheduler could give at each fair share."
TITLES = {
    1: "Done sooner to the left, a shorter wait below",
    2: "Done sooner to the left; below is a shorter wait, above a fairer share",
}


def draw(found: Outcomes, frozen: Frozen, basis: str) -> Figure:
    """Draw a panel of latencies and a panel of minimum fair shares for each configuration.

    A hollow marker shows a scheduler pair that another pair dominates. Panels in which all values
    are 100% are left out. If there are more than ``MOST_CELLS`` configurations, they share panels,
    and each value is divided by the best value in its configuration.
    """
    cells = list(found)
    if len(cells) > MOST_CELLS:
        return _together(found, frozen, basis)
    columns = min(COLUMNS, len(cells))
    bands = -(-len(cells) // columns)
    plain = 2 if _shares_differ(found) else 1
    outcomes = [one for here in found.values() for one in here.values()]
    is_limited = (
        any(one.curve for one in outcomes) and min(one.mean("limit") for one in outcomes) < 1.0
    )
    rows = plain + is_limited
    height_in = 1.0 + rows * bands * HEIGHT_IN
    figure, grid = panels(rows * bands, columns, max(6.0, columns * PANEL_IN), height_in)
    for number in range(bands * columns):
        own = [grid[rows * (number // columns) + row][number % columns] for row in range(rows)]
        if number >= len(cells):
            for axes in own:
                axes.set_axis_off()
            continue
        cell = cells[number]
        _panels(own[:plain], found[cell], frozen)
        if is_limited:
            _limit_panel(own[plain], found[cell], frozen)
        own[0].set_title(f"{cell} ({cell.part})", fontsize=8)
        if number % columns == 0:
            for axes, label in zip(own, (*LABELS[:plain], OF_LIMIT), strict=False):
                axes.set_ylabel(label, fontsize=7)
        own[plain - 1].set_xlabel("90% of the programs done, s", fontsize=7)
        if is_limited:
            own[plain].set_xlabel("min. fair share of best, %", fontsize=7)
    notes = (
        "Circles as published, squares capped, triangles tuned. Hollow: another configuration "
        f"dominates it there.{CURVE if is_limited else ''} {basis[0].upper()}{basis[1:]}."
    )
    caption(figure, TITLES[plain], notes, grid[0][0], columns=len(frozen.pairs))
    return figure


MEASURES = {
    "to_90_s": "90% of the programs done,\ntimes the least",
    "p95_s": "P95 of the well-behaved,\ntimes the least",
    "share": "min. fair share,\nparts of the largest",
    "limit": "service,\nparts of the limit",
}
# ``OFFSETS`` shifts the marks of published, capped and tuned settings vertically, in row heights.
OFFSETS = {PUBLISHED: 0.24, CAPPED: 0.0, TUNED: -0.24}


def _together(found: Outcomes, frozen: Frozen, basis: str) -> Figure:
    height_in = 1.4 + 0.42 * len(frozen.pairs)
    figure, (axes,) = panels(1, len(MEASURES), 9.5, height_in, sharey=True)
    for panel, (measure, label) in zip(axes, MEASURES.items(), strict=True):
        for configuration in dict.fromkeys(one for here in found.values() for one in here):
            _dots(panel, _ratios(found, configuration, measure), configuration, frozen)
        if measure not in ("share", "limit"):
            log_x(panel)
        panel.tick_params(axis="x", labelsize=7)
        panel.set_xlabel(label, fontsize=8)
        panel.grid(axis="x", color="0.9")
        panel.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(frozen.pairs)), frozen.pairs)
    axes[0].set_ylim(len(frozen.pairs) - 0.5, -0.5)
    for form, marker in MARKERS.items():
        axes[0].plot([], [], marker, color="0.3", linestyle="", markersize=4, label=form)
    notes = (
        f"A dot is one of {len(found)} configurations; a bar is the median of a form. "
        f"{basis[0].upper()}{basis[1:]}."
    )
    caption(figure, "Each scheduler against the best in the same configuration", notes, axes[0])
    return figure


def _ratios(found: Outcomes, configuration: Configuration, measure: str) -> list[float]:
    """Return a measure in each configuration, divided by the best value of any scheduler pair.

    The measure ``limit`` is returned unchanged, because it is already a fraction.
    """
    best = max if measure == "share" else min
    return [
        here[configuration].mean(measure)
        / (1.0 if measure == "limit" else best(one.mean(measure) for one in here.values()))
        for here in found.values()
        if configuration in here
    ]


def _dots(
    axes: Axes, ratios: Sequence[float], configuration: Configuration, frozen: Frozen
) -> None:
    number = frozen.pairs.index(configuration.pair)
    row = number - OFFSETS[configuration.form]
    colour = COLOURS[number % len(COLOURS)]
    axes.plot(
        ratios, [row] * len(ratios), MARKERS[configuration.form], color=colour, markersize=3.5,
        markerfacecolor="none", alpha=0.8,
    )  # fmt: skip
    middle = median(ratios)
    axes.plot([middle, middle], [row - 0.11, row + 0.11], color="black", linewidth=2)


def _shares_differ(found: Outcomes) -> bool:
    return any(one.mean("share") < 1.0 for here in found.values() for one in here.values())


def _panels(own: list[Axes], here: Mapping[Configuration, Outcome], frozen: Frozen) -> None:
    for configuration, outcome in here.items():
        label = configuration.pair if configuration.form == PUBLISHED else "_"
        looks = _looks(configuration, here, frozen)
        at_s = outcome.mean("to_90_s")
        own[0].plot(at_s, outcome.mean("p95_s"), label=label, **looks)
        for axes in own[1:]:
            axes.plot(at_s, 100 * outcome.mean("share"), **looks)
    log_y(own[0])
    for axes in own:
        axes.tick_params(labelsize=6)


def _looks(
    configuration: Configuration, here: Mapping[Configuration, Outcome], frozen: Frozen
) -> dict[str, Any]:
    colour = COLOURS[frozen.pairs.index(configuration.pair) % len(COLOURS)]
    is_dominated = _is_dominated(here[configuration], here, frozen.margin)
    return {
        "color": colour,
        "marker": MARKERS[configuration.form],
        "markerfacecolor": "none" if is_dominated else colour,
        "linestyle": "",
        "markersize": 5,
    }


def _limit_panel(axes: Axes, here: Mapping[Configuration, Outcome], frozen: Frozen) -> None:
    for configuration, outcome in here.items():
        if outcome.curve:
            shares, limits = ([100 * one for one in part] for part in (FAIRNESS, outcome.curve))
            axes.plot(shares, limits, color="black", linewidth=1)
        at = 100 * outcome.mean("share"), 100 * outcome.mean("limit")
        axes.plot(*at, **_looks(configuration, here, frozen))
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
    """Draw the picture into a folder, and return the paths of the files.

    Raises UsageError if the picture cannot be drawn or written.
    """
    with paper_style():
        return write_figure(draw(found, frozen, basis), output, frozen.name, formats)
