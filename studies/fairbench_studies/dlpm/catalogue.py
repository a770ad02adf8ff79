"""The reproduced figures of the DLPM paper by name, with the source of each figure's numbers.

To add a figure, add a module and a bundled sweep with the figure's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fairbench.config.defaults import read_preset
from fairbench.config.sweep import points, read_sweep, sweep_names, with_axes
from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench_papers.style import check_drawable, paper_style
from fairbench_studies.dlpm.fig4 import read_timings
from fairbench_studies.kit.pictures import write_figure


def read_cells(folder: Path) -> Any:
    """Return the results in a sweep's directory, one for each configuration and scheduler.

    Raises DataError if no run of the sweep is finished.
    """
    cells = compare_sweep(folder)
    if not cells:
        raise DataError(f"{folder}: holds no finished run")
    return cells


def check_own(cells: Sequence[SchedulerResults], name: str, folder: Path) -> None:
    """Raise DataError if a run does not belong to the sweep of the figure ``name``.

    The sweep must have the run's scheduler, workload, scenario and number of replicas.
    """
    own = {
        (spec.scheduler, spec.workload.name, spec.scenario, spec.dp)
        for spec in points(with_axes(read_sweep(name), {}, num_runs=1))
    }
    for cell in cells:
        keys = ("scheduler", "workload", "scenario", "dp")
        if tuple(cell.combined[key] for key in keys) not in own:
            raise DataError(
                f"{folder}: the run of {cell.scheduler} on {cell.place} is not part of the sweep "
                f"{name}; name the folder of this sweep. To draw a picture of these runs, use "
                f"fairbench plot {folder}"
            )


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure of the DLPM paper, drawn by the module of the same name.

    The figure's runs come from the bundled sweep NAME, or NAME-PRESET if ``preset`` is set. Only
    fig4 has no sweep, because fig4 shows measured times instead of simulations.
    """

    name: str
    read: Callable[[Path], Any] = read_cells
    preset: str | None = None

    @property
    def sweep(self) -> str:
        """The name shared by the bundled sweep, the directory of runs, and the drawn files."""
        return self.name if self.preset is None else f"{self.name}-{self.preset}"

    def plot(self, folder: Path, output: Path, formats: Sequence[str]) -> list[Path]:
        """Draw the figure from the runs in ``folder``. Write the figure's pictures and values.

        Returns the paths of the written files. Raises DataError if the folder cannot be read or
        belongs to another figure, and UsageError if a file cannot be written.
        """
        check_drawable()
        module = import_module(f"fairbench_studies.dlpm.{self.name}")
        source = self.read(folder)
        if self.read is read_cells:
            check_own(source, self.sweep, folder)
        with paper_style():
            figure = module.draw(source)
            return write_figure(figure, output, self.sweep, formats, module.rows(source))


def _figures() -> Mapping[str, PaperFigure]:
    names = [name for name in sweep_names() if re.fullmatch(r"fig\d+", name)]
    figures = (PaperFigure("fig4", read_timings), *map(PaperFigure, names))
    return {one.name: one for one in sorted(figures, key=lambda one: int(one.name[len("fig") :]))}


FIGURES = _figures()


def figure_named(name: str, preset: str | None = None) -> PaperFigure:
    """Return the figure ``name``, with the settings of ``preset`` if a preset is given.

    Raises UsageError if no figure has the name, or if the figure has no runs with ``preset``.
    """
    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    if preset is None:
        return FIGURES[name]
    known = figures_of(preset)
    if name not in known:
        raise UsageError(
            f"--preset {preset}: does not reproduce {name}; this preset reproduces "
            f"{', '.join(known) or 'no figure'}"
        )
    return known[name]


def figures_of(preset: str) -> Mapping[str, PaperFigure]:
    """Return the figures that have a bundled sweep for the preset, keyed by name.

    Raises UsageError if the preset is unknown.
    """
    read_preset(preset)
    known = [replace(one, preset=preset) for one in FIGURES.values()]
    return {one.name: one for one in known if one.sweep in sweep_names()}
