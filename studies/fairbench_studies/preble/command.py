"""``fairbench reproduce preble``: the Preble paper's figures and claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fairbench.execute.executor import Executor
from fairbench_studies.kit.paper_runs import filled
from fairbench_studies.preble.draw import plot
from fairbench_studies.preble.store import fill, read
from fairbench_studies.preble.table import judge_preble, preble_markdown, write_preble

PREBLE = "preble"


def reproduce_preble(
    folder: Path,
    output: Path,
    claims_dir: Path,
    formats: Sequence[str],
    executor: Executor,
    *,
    quick: bool,
    show: bool,
) -> None:
    """Run missing simulations, draw figures 3 to 5 and scalability, and judge the claims.

    Raises Interrupted when interrupted, and the error of a failed run.
    """
    seeds = filled(fill, folder, executor, quick=quick, show=show)
    results = read(folder, seeds=seeds)
    for path in plot(results, output, formats):
        typer.echo(path)
    judged = judge_preble(results)
    for path in write_preble(judged, results, claims_dir):
        typer.echo(path)
    typer.echo(preble_markdown(judged, results), nl=False)
