"""``fairbench reproduce vtc``: the VTC paper's figures and claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fairbench.execute.executor import Executor
from fairbench_studies.kit.paper_runs import filled
from fairbench_studies.vtc.draw import plot
from fairbench_studies.vtc.store import fill, read
from fairbench_studies.vtc.table import judge_vtc, missing, vtc_markdown, write_vtc

VTC = "vtc"


def reproduce_vtc(
    folder: Path,
    output: Path,
    claims_dir: Path,
    formats: Sequence[str],
    executor: Executor,
    *,
    quick: bool,
    show: bool,
) -> None:
    """Run missing simulations, draw figures 3 to 14 of seed 0, and judge the claims.

    Raises Interrupted when interrupted, and the error of a failed run.
    """
    seeds = filled(fill, folder, executor, quick=quick, show=show)
    results = read(folder)
    for path in plot(results, output, formats):
        typer.echo(path)
    judged = judge_vtc(results, [read(folder, seed=seed) for seed in range(1, seeds)])
    for path in write_vtc(judged, results.basis(), claims_dir, seeds):
        typer.echo(path)
    typer.echo(vtc_markdown(judged, results.basis(), seeds), nl=False)
    if left := missing(judged):
        numbers = ", ".join(map(str, left))
        typer.echo(
            f"fairbench: without the Arena trace (docs/studies/vtc-paper.md) not judged: {numbers}",
            err=True,
        )
