"""``fairbench reproduce frontier``: compare fair-finish with every other scheduler pair."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from fairbench.errors import RunFailed
from fairbench.execute.tasks import Executor, run_context
from fairbench.report.progress import shown_progress
from fairbench_studies.frontier.draw import plot
from fairbench_studies.frontier.frozen import NAME, frozen
from fairbench_studies.frontier.outcomes import outcomes
from fairbench_studies.frontier.runs import Plan
from fairbench_studies.frontier.table import summary_lines, write
from fairbench_studies.kit.provenance import origin_of

FRONTIER = NAME


class FrontierSize(NamedTuple):
    """The configurations to run, the number of seeds (None means all planned), and the preset."""

    quick: bool
    seeds: int | None
    preset: str | None = None


def reproduce_frontier(
    folder: Path,
    output: Path,
    tables: Path,
    formats: Sequence[str],
    executor: Executor,
    size: FrontierSize,
    *,
    show: bool,
) -> None:
    """Run the missing simulations, then write the picture, the tables and the verdict.

    Raises Interrupted after a signal. Raises RunFailed if simulations failed, but first draws the
    picture of the finished runs.
    """
    settings = frozen(size.preset)
    plan = Plan(settings, quick=size.quick, seeds=size.seeds)
    left = plan.left(folder)
    typer.echo(
        f"{left.points} points, {len(left.jobs)} of them to run: about {left.cpu_minutes:.0f} "
        "minutes of one processor",
        err=True,
    )
    with run_context(shown_progress() if show else None, executor) as context:
        failures = left.run(context)
        interrupted = context.interrupted
    for failure in failures:
        typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
    stored = left.store.finished()
    runs = plan.finished(stored)
    if runs:
        found = outcomes(runs)
        basis = origin_of([run.summary for run in runs.values()])
        for path in (
            *plot(found, settings, basis, output, formats),
            *write(found, settings, basis, tables),
        ):
            typer.echo(path)
        typer.echo("\n".join(summary_lines(found, settings)))
    if interrupted():
        raise interrupted.ended(f"interrupted; finished runs are in {folder}")
    if failures or not runs:
        raise RunFailed(f"runs failed: {len(failures)}; see {folder / 'failed'}")
