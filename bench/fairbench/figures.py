"""Figures and LaTeX tables of results, drawn by an installed package (``fairbench.figures``).

Figures need matplotlib and seaborn (extra ``plot``); without them, every function except
``latex_table`` raises UsageError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.doors import FIGURE_GROUP, through

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fairbench.files.times import ClockTime
    from fairbench.results.comparison import SchedulerResults
    from fairbench.results.store import StoredRun
    from fairbench.workloads.traces.table import TraceTable


def check_plot(path: Path) -> None:
    """Raise UsageError for an unsupported format, a missing folder, or missing libraries."""
    through(FIGURE_GROUP, "check")(path)


def draw_plan(answer: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw the ``answer`` of a capacity plan to a file.

    Raises UsageError if the file cannot be written.
    """
    through(FIGURE_GROUP, "plan")(answer, path, title)


def draw_trace(table: TraceTable, path: Path, title: str, clock: ClockTime | None = None) -> None:
    """Draw the load of a trace over time to a file.

    Raises UsageError if the file cannot be written.
    """
    through(FIGURE_GROUP, "trace")(table, path, title, clock)


def run_figure(run: StoredRun) -> Figure:
    """Return a figure of each client's service and response times over the run."""
    figure: Figure = through(FIGURE_GROUP, "run")(run)
    return figure


def comparison_figure(cells: Sequence[SchedulerResults], kind: str) -> Figure:
    """Return a figure of the given ``kind``.

    Raises UsageError for an unknown ``kind``.
    """
    figure: Figure = through(FIGURE_GROUP, "comparison")(cells, kind)
    return figure


def latex_table(cells: Sequence[SchedulerResults], columns: Sequence[str] = ()) -> str:
    """Return the LaTeX table of a comparison; the default columns fill a column of a paper.

    Raises UsageError for a metric that the runs lack.
    """
    table: str = through(FIGURE_GROUP, "latex")(cells, columns)
    return table
