"""Pictures of the Preble paper's figures 3 to 5 and of its scalability, with their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fairbench.figures.style import client_style, panels, paper_style
from fairbench_studies.kit.pictures import write_figure
from fairbench_studies.preble.experiments import Key
from fairbench_studies.preble.store import Latency, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_IN, HEIGHT_IN = 2.6, 4.4
LETTERS = 100  # letters of a line below the figure

# Figure -> its title and its axis label ("" for the ablation's steps).
FIGURES = {
    "fig3": ("Preble Fig. 3: latency over the rate", "programs/s of a client and GPU"),
    "fig4": ("Preble Fig. 4: tool use and videos mixed, in bursts", "tool programs/s"),
    "fig5": ("Preble Fig. 5: one mechanism more at each step, tool use", ""),
    "scale": ("Preble §F: more GPUs, as many more documents", "GPUs"),
}


def plot(results: Results, output: Path, formats: Sequence[str]) -> list[Path]:
    """Draw each figure with its numbers as CSV; return the files. Raises UsageError."""
    files: list[Path] = []
    for name in FIGURES:
        files += _plot_one(name, results, output, formats)
    return files


def _plot_one(name: str, results: Results, output: Path, formats: Sequence[str]) -> list[Path]:
    shown = {key: one for key, one in results.latencies.items() if key.figure == name}
    with paper_style():
        figure = _figure(name, shown)
        figure.suptitle(FIGURES[name][0], fontsize=10)
        figure.supxlabel(fill(results.basis, LETTERS), fontsize=6)
        return write_figure(figure, output, f"preble-{name}", formats, rows(shown))


def rows(shown: Mapping[Key, Latency]) -> list[dict[str, Any]]:
    """Return a row per key."""
    return [key._asdict() | one._asdict() for key, one in shown.items()]


def _figure(name: str, shown: Mapping[Key, Latency]) -> Figure:
    """Draw the mean above the P99, with a column per workload."""
    workloads = list(dict.fromkeys(key.workload for key in shown))
    figure, axes = panels(2, len(workloads), max(2, len(workloads)) * PANEL_IN, HEIGHT_IN)
    for column, workload in enumerate(workloads):
        mine = {key: one for key, one in shown.items() if key.workload == workload}
        for line, metric in enumerate(("mean_s", "p99_s")):
            panel = axes[line][column]
            (_curves if FIGURES[name][1] else _bars)(panel, mine, metric)
            panel.set_ylim(bottom=0)
        axes[0][column].set_title(workload, fontsize=9)
        axes[1][column].set_xlabel(FIGURES[name][1])
    axes[0][0].set_ylabel("mean latency, s")
    axes[1][0].set_ylabel("P99 latency, s")
    if FIGURES[name][1]:
        axes[0][0].legend(fontsize=7)
    return figure


def _curves(panel: Axes, shown: Mapping[Key, Latency], metric: str) -> None:
    for number, system in enumerate(dict.fromkeys(key.system for key in shown)):
        points = [
            (key.value, getattr(one, metric)) for key, one in shown.items() if key.system == system
        ]
        style = client_style(number)
        x, y = zip(*points, strict=True)
        panel.plot(
            x, y, color=style.colour, linestyle=style.line, marker=style.marker, label=system
        )


def _bars(panel: Axes, shown: Mapping[Key, Latency], metric: str) -> None:
    names = [fill(key.system, 14) for key in shown]
    panel.bar(names, [getattr(one, metric) for one in shown.values()], color=client_style(0).colour)
    panel.tick_params(axis="x", labelsize=5)
