"""Figures of a directory of runs, or of cells in memory, as files or matplotlib figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairbench.errors import UsageError, unknown_name
from fairbench.figures.compared.draw import (
    against_parameter,
    bars,
    cdfs,
    distribution,
    tradeoff,
)
from fairbench.figures.style import check_drawable, paper_style, save_in
from fairbench.results.comparison import SchedulerResults
from fairbench.results.sweeps import axes_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KINDS: Mapping[str, Callable[[Sequence[SchedulerResults]], Figure]] = {
    "bars": bars,
    "tradeoff": tradeoff,
    "cdf": cdfs,
    "parameter": against_parameter,
}


def drawn(cells: Sequence[SchedulerResults], kind: str) -> Figure:
    """Return one figure. Raises UsageError for an unknown kind, or without the plot extra."""
    if kind not in KINDS:
        raise unknown_name("kind of picture", kind, KINDS)
    if kind == "cdf" and not _have_latencies(cells):
        raise UsageError("kind 'cdf': needs result_dir, because latencies are read from saved runs")
    if kind == "parameter" and not axes_of(cells):
        raise UsageError(
            "kind 'parameter': needs a sweep over the values of a parameter, a load or replicas"
        )
    check_drawable()
    with paper_style():
        return KINDS[kind](cells)


def write_pictures(
    cells: Sequence[SchedulerResults], output: Path, name: str, formats: Sequence[str]
) -> list[Path]:
    """Write every kind of figure; return the files. Raises UsageError for an unwritable file."""
    check_drawable()
    written: list[Path] = []
    for kind, draw in KINDS.items():
        if kind == "cdf" and not _have_latencies(cells):
            continue
        if kind == "parameter" and not axes_of(cells):
            continue
        with paper_style():
            written += save_in(draw(cells), output, f"{name}-{kind}", formats)
    return written


def _have_latencies(cells: Sequence[SchedulerResults]) -> bool:
    return any(distribution(cell) is not None for cell in cells)
