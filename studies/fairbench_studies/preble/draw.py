"""Pictures of Preble's figures 3 to 5 and of its scalability, with the drawn numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.results.significance import METHOD, MeanInterval, t_interval
from fairbench_papers.style import caption, client_style, log_y, panels, paper_style
from fairbench_studies.kit.paper_runs import listed_seeds
from fairbench_studies.kit.pictures import write_figure
from fairbench_studies.kit.values import line_with_band
from fairbench_studies.preble.experiments import Key
from fairbench_studies.preble.store import Latency, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, HEIGHT_IN = 2.6, 4.4
Runs = Mapping[Key, Sequence[Latency]]
FLAT = 12  # the y axis is logarithmic if the largest value is more than ``FLAT`` times the smallest
METRICS = {"mean_s": "mean latency, s", "p99_s": "P99 latency, s"}

# ``FIGURES`` holds the title and x label of each figure. The figure of the ablation has no x label,
# because its bars have names.
FIGURES = {
    "fig3": ("Preble Fig. 3: latency over the rate", "programs/s of a client and GPU"),
    "fig4": ("Preble Fig. 4: tool use and videos mixed, in bursts", "tool programs/s"),
    "fig5": ("Preble Fig. 5: one mechanism more at each step, tool use", ""),
    "scale": ("Preble §F: more GPUs, as many more documents", "GPUs"),
}


def plot(results: Results, output: Path, formats: Sequence[str]) -> list[Path]:
    """Draw each figure, write its numbers as CSV, and return all paths. Raises UsageError."""
    files: list[Path] = []
    for name in FIGURES:
        files += _plot_one(name, results, output, formats)
    return files


def _plot_one(name: str, results: Results, output: Path, formats: Sequence[str]) -> list[Path]:
    shown = {key: runs for key, runs in results.runs.items() if key.figure == name}
    seeds = listed_seeds(min(map(len, shown.values())))
    with paper_style():
        figure = _figure(name, shown, f"{results.basis}; {seeds}, {METHOD}")
        return write_figure(figure, output, f"preble-{name}", formats, rows(shown))


def rows(shown: Runs) -> list[dict[str, Any]]:
    """Return a row per configuration, with mean latencies over the seeds and 95% intervals."""
    return [
        key._asdict()
        | {
            f"{metric}{end}": value
            for metric in Latency._fields
            for end, value in zip(("", "_low", "_high"), interval(runs, metric), strict=True)
        }
        for key, runs in shown.items()
    ]


def interval(runs: Sequence[Latency], metric: str) -> MeanInterval:
    """Return a metric's mean over the seeds with its 95% interval (Student's t).

    If a request is unfinished with any seed, the metric's mean is infinite and has no interval.
    """
    values = [getattr(one, metric) for one in runs]
    return (
        t_interval(values, least=0.0)
        if np.isfinite(values).all()
        else MeanInterval(inf, None, None)
    )


def _figure(name: str, shown: Runs, origin: str) -> Figure:
    if not FIGURES[name][1]:
        figure, grid = panels(1, 2, 2.6 * PANEL_IN, 2.4, sharey=True)
        for panel, (metric, label) in zip(grid[0], METRICS.items(), strict=True):
            _bars(panel, shown, metric)
            panel.set_xlabel(label)
        caption(figure, FIGURES[name][0], origin, grid[0][0])
        return figure
    workloads = list(dict.fromkeys(key.workload for key in shown))
    figure, axes = panels(2, len(workloads), max(2, len(workloads)) * PANEL_IN, HEIGHT_IN)
    for column, workload in enumerate(workloads):
        mine = {key: one for key, one in shown.items() if key.workload == workload}
        for line, metric in enumerate(METRICS):
            panel = axes[line][column]
            _curves(panel, mine, metric)
            _scale(panel, [interval(runs, metric) for runs in mine.values()])
        axes[0][column].set_title(workload, fontsize=9)
        axes[1][column].set_xlabel(FIGURES[name][1], fontsize=8)
    for line, label in enumerate(METRICS.values()):
        axes[line][0].set_ylabel(label)
    caption(figure, FIGURES[name][0], origin, axes[0][0])
    return figure


def _scale(panel: Axes, values: Sequence[MeanInterval]) -> None:
    means = [value.mean for value in values]
    if max(means) > FLAT * min(means):
        log_y(panel)
        # The axis gets a lower limit, because an interval can end at zero, which has no logarithm.
        panel.set_ylim(bottom=min(means) / 2)
    else:
        panel.set_ylim(0, 1.06 * max(value.high or value.mean for value in values))


def _curves(panel: Axes, shown: Runs, metric: str) -> None:
    for number, system in enumerate(dict.fromkeys(key.system for key in shown)):
        mine = {
            key.value: interval(of, metric) for key, of in shown.items() if key.system == system
        }
        style = client_style(number)
        line_with_band(
            panel, {x: (value.mean, *_ends(value)) for x, value in mine.items()},
            color=style.colour, linestyle=style.line, marker=style.marker,
            markeredgecolor=style.colour, label=system,
        )  # fmt: skip
        ticks = sorted({key.value for key in shown})
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])


def _bars(panel: Axes, shown: Runs, metric: str) -> None:
    names = [key.system for key in shown][::-1]
    values = [interval(runs, metric) for runs in shown.values()][::-1]
    means = [value.mean for value in values]
    low, high = zip(*map(_ends, values), strict=True)
    arms = [np.subtract(means, low), np.subtract(high, means)]
    panel.barh(names, means, xerr=arms, color=client_style(0).colour, ecolor="0.2")
    panel.tick_params(labelsize=7)


def _ends(value: MeanInterval) -> tuple[float, float]:
    mean, low, high = value
    return mean if low is None else low, mean if high is None else high
