"""``fairbench reproduce claims --map``: vary one setting at a time, and judge each claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from fairbench.errors import RunFailed
from fairbench.execute.tasks import Executor, run_context
from fairbench.report.progress import shown_progress
from fairbench_papers.style import check_drawable
from fairbench_studies.dlpm.claims.map_picture import draw_maps
from fairbench_studies.dlpm.claims.map_points import (
    MAPPED,
    QUICK_SEEDS,
    SEEDS,
    Chart,
    groups,
    map_sweep,
)
from fairbench_studies.dlpm.claims.map_table import NAME, write_map
from fairbench_studies.dlpm.claims.table import CLAIMS
from fairbench_studies.kit.provenance import origin_of
from fairbench_studies.kit.store import filling

MAP = NAME  # name of the directory with the runs for the map of claims


class MapFiles(NamedTuple):
    """The output folders for pictures and tables, and the file formats of the pictures."""

    pictures: Path
    tables: Path
    formats: Sequence[str]


def draw_claims_map(
    folder: Path, files: MapFiles, executor: Executor, *, quick: bool, show: bool
) -> None:
    """Run missing simulations, then write pictures and tables that show where claims hold.

    Raises Interrupted after a signal. If simulations failed, the function draws the finished runs
    and then raises RunFailed.
    """
    check_drawable()
    seeds = QUICK_SEEDS if quick else SEEDS
    charts = [Chart.of(group, seeds) for group in groups(quick=quick)]
    left = filling(map_sweep(charts, folder.name), folder)
    typer.echo(
        f"{left.points} points, {len(left.jobs)} of them to run: about {left.cpu_minutes:.0f} "
        "minutes of one processor",
        err=True,
    )
    with run_context(shown_progress() if show else None, executor) as context:
        failures = left.run(context)
        if context.interrupted():
            raise context.interrupted.ended(f"interrupted; finished runs are in {folder}")
    for failure in failures:
        typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
    finished = left.store.finished()
    readings = [one for chart in charts for one in chart.readings(finished)]
    if not readings:
        raise RunFailed(f"no run is finished, so there is nothing to show; see {folder / 'failed'}")
    bases = {
        claim.number: origin_of(summaries)
        for chart in charts
        if (summaries := chart.summaries(finished))
        for claim in chart.group.claims
    }
    basis = origin_of([run.summary for run in finished.values()])
    titles = {claim.number: claim.text for claim in CLAIMS}
    for path in (
        *draw_maps(MAPPED, titles, readings, bases, files.pictures, files.formats),
        *write_map(readings, titles, basis, files.tables),
    ):
        typer.echo(path)
    if failures:
        raise RunFailed(f"runs failed: {len(failures)}; see {folder / 'failed'}")
