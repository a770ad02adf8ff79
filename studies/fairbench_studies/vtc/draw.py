"""Small versions of the VTC paper's figures, with the plotted numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from fairbench_papers.style import client_style, panels, paper_style
from fairbench_studies.kit.pictures import write_figure
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.curves import FIGURES, Panel, panels_of, rows
from fairbench_studies.vtc.store import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_IN, HEIGHT_IN = 3.1, 2.9
LETTERS = 90  # maximum number of characters in a line of text below the figure
HEADROOM = 1.25  # factor by which an axis exceeds its values, to leave space for the legend
MARKS = 12  # markers per curve


def plot(results: Results, output: Path, formats: Sequence[str]) -> list[Path]:
    """Draw each figure whose runs are complete, and return the files. Raises UsageError."""
    files: list[Path] = []
    for number in FIGURES:
        used = _Used(results.traces)
        shown = panels_of(number, used)
        if shown is not None:
            files += _plot_one(number, shown, results.basis(used.names), output, formats)
    return files


class _Used(dict[str, Trace]):
    """Traces keyed by run name. The dictionary records each name that is looked up."""

    def __init__(self, traces: Mapping[str, Trace]) -> None:
        super().__init__(traces)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Trace:
        self.names.add(name)
        return super().__getitem__(name)


def _plot_one(
    number: int, shown: Sequence[Panel], basis: str, output: Path, formats: Sequence[str]
) -> list[Path]:
    with paper_style():
        figure, axes = panels(1, len(shown), max(2, len(shown)) * PANEL_IN, HEIGHT_IN)
        for panel, one in zip(shown, axes[0], strict=True):
            _draw(one, panel)
        figure.suptitle(f"VTC Fig. {number}: {FIGURES[number][0]}", fontsize=10)
        figure.supxlabel(fill(f"{basis}; seed 0", LETTERS), fontsize=6)
        return write_figure(figure, output, f"vtc-fig{number}", formats, rows(shown))


def _draw(axes: Axes, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        style = client_style(number)
        axes.plot(
            curve.at,
            curve.value,
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=max(1, len(curve.at) // MARKS),
            label=curve.name,
        )
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.set_ylim(0, HEADROOM * axes.get_ylim()[1])
    axes.legend(fontsize=6, loc="upper left", ncols=2)
