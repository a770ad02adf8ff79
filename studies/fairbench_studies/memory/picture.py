"""The picture of docs/reference/memory.md: each eviction policy's hit rate and throughput."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.report.palette import BLACK, BLUE, GREEN, ORANGE, VERMILION, Swatch
from fairbench.results.significance import t_interval
from fairbench_papers.style import caption, panels, paper_style, save
from fairbench_studies.kit.rows import ROOT

FIGURE = ROOT / "plots/memory-share.svg"
WIDTH_IN, HEIGHT_IN = 7.0, 1.8  # width and height of a row of panels, in inches
COLUMNS = 2  # a column for each scenario
# ``STYLES`` has a style for each eviction policy in a panel.
STYLES: Sequence[Swatch] = (BLACK, ORANGE, GREEN, BLUE, VERMILION)
FAR = 1e3  # a value outside all panels
MOST_LOST = -5.0  # the goal: at most 5% less throughput than with LRU eviction
PROVENANCE = (
    "Simulated: vtc, two A100 replicas. A mark is the mean over seeds of the well-behaved client "
    "that keeps least; bars are 95% intervals. Shaded: the goal"
)


class Point(NamedTuple):
    """The worst client's hit rate (% of the rate when alone) and the throughput (% of LRU's)."""

    kept: Sequence[float]
    throughput: Sequence[float]


def draw(points: Mapping[str, Mapping[str, Point]], goal: float) -> None:
    """Draw a panel for each workload, with a marker for each eviction policy.

    ``goal`` is the lowest hit rate that a client should keep, in percent.
    """
    rows = -(-len(points) // COLUMNS)
    with paper_style():
        figure, grid = panels(
            rows, COLUMNS, WIDTH_IN, HEIGHT_IN * rows + 0.6, sharex=True, sharey=True
        )
        every = [axes for row in grid for axes in row]
        for axes, (workload, policies) in zip(every, points.items(), strict=True):
            seeds = len(policies["lru"].kept)
            axes.set_title(f"{workload}, {seeds} seed{'s' * (seeds > 1)}", fontsize=9)
            for (policy, point), style in zip(policies.items(), STYLES, strict=True):
                _draw_point(axes, policy, point, style)
        _shade(every, goal)
        for row in grid:
            row[0].set_ylabel("kept hit rate,\n% of alone", fontsize=8)
        for axes in grid[-1]:
            axes.set_xlabel("throughput against LRU, %", fontsize=8)
        caption(figure, "", PROVENANCE, every[0])
        save(figure, [FIGURE])


def _draw_point(axes: Any, policy: str, point: Point, style: Swatch) -> None:
    kept, at = (t_interval(values) for values in point)
    axes.errorbar(
        at.mean, kept.mean, xerr=_half(at), yerr=_half(kept), fmt=style.marker, label=policy,
        color=style.colour, markersize=7, elinewidth=0.8, capsize=2,
    )  # fmt: skip


def _half(interval: Iterable[float | None]) -> float:
    mean, low, _ = interval
    return 0.0 if mean is None or low is None else mean - low


def _shade(every: Sequence[Any], goal: float) -> None:
    one = every[0]
    one.set_xlim(min(one.get_xlim()[0], MOST_LOST - 3), max(one.get_xlim()[1], 3))
    one.set_ylim(0, max(one.get_ylim()[1], goal + 20))
    for axes in every:
        axes.fill([MOST_LOST, FAR, FAR, MOST_LOST], [goal, goal, FAR, FAR], "0.88", zorder=0)
