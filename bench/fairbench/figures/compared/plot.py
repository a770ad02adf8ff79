"""Pictures of a directory of runs, or of cells in memory, as files or figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.figures.compared.draw import bars, cdfs, distribution, tradeoff
from fairbench.figures.compared.parameter import against_parameter, swept
from fairbench.figures.style import check_drawable, paper_style, save
from fairbench.results.comparison import SchedulerResults
from fairbench.results.contrast import Side, sides_of
from fairbench.results.intervals import combine
from fairbench.results.reading import runs_below

if TYPE_CHECKING:
    from matplotlib.figure import Figure


KINDS: Mapping[str, Callable[[Sequence[SchedulerResults]], Figure]] = {
    "bars": bars,
    "tradeoff": tradeoff,
    "cdf": cdfs,
    "parameter": against_parameter,
}


def read_own(folder: Path) -> list[SchedulerResults]:
    """Return the cells of a directory of runs, by configuration."""
    cells = cells_of(sides_of(runs_below(folder)))
    if not cells:
        raise DataError(f"{folder}: holds no finished run")
    return cells


def cells_of(sides: Sequence[Side]) -> list[SchedulerResults]:
    """Return sides of a comparison as cells, grouped by configuration."""
    places = list(dict.fromkeys(side.place for side in sides))
    return [
        SchedulerResults(
            side.place,
            side.name,
            tuple(side.runs.values()),
            combine([run.summary for run in side.runs.values()]),
        )
        for side in sorted(sides, key=lambda side: places.index(side.place))
    ]


def drawn(cells: Sequence[SchedulerResults], kind: str) -> Figure:
    """Return one picture. Raises UsageError for an unknown kind, or without the plot extra."""
    if kind not in KINDS:
        raise unknown_name("kind of picture", kind, KINDS)
    if kind == "cdf" and not _have_latencies(cells):
        raise UsageError("kind 'cdf': needs result_dir, because latencies are read from saved runs")
    if kind == "parameter" and not swept(cells):
        raise UsageError("kind 'parameter': needs a sweep over one parameter of a scheduler")
    check_drawable()
    with paper_style():
        return KINDS[kind](cells)


def write_pictures(
    cells: Sequence[SchedulerResults], output: Path, name: str, formats: Sequence[str]
) -> list[Path]:
    """Write every kind of picture; return the files. Raises UsageError if one cannot be written.

    Args:
        cells: Results of each scheduler.
        output: Directory of the files, created if it does not exist.
        name: Beginning of the files' names.
        formats: Suffixes of the files, without a dot.
    """
    check_drawable()
    written: list[Path] = []
    for kind, draw in KINDS.items():
        if kind == "cdf" and not _have_latencies(cells):
            continue
        if kind == "parameter" and not swept(cells):
            continue
        paths = [output / f"{name}-{kind}.{suffix}" for suffix in formats]
        with paper_style():
            figure = draw(cells)
            try:
                output.mkdir(parents=True, exist_ok=True)
                save(figure, paths)
            except OSError as error:
                raise UsageError(
                    f"output_dir {output}: cannot be written: {error.strerror}"
                ) from None
        written += paths
    return written


def _have_latencies(cells: Sequence[SchedulerResults]) -> bool:
    return any(distribution(cell) is not None for cell in cells)
