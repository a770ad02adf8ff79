"""``fairbench run --num-runs N``: one experiment over several seeds, in parallel processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairbench.cli.interrupt import Interruption
    from fairbench.config import ExperimentSpec

POLL_S = 0.2


def run_repeatedly(
    spec: ExperimentSpec, num_runs: int, result_dir: Path, *, as_json: bool, show: bool
) -> None:
    """Run seeds ``spec.seed`` and up; each run is saved as usual, inside one fresh directory.

    That directory also gets ``intervals.json``. On Ctrl-C, what was begun is kept as it stands.
    """
    from fairbench.cli.interrupt import interruptible
    from fairbench.report.intervals import as_lines, combine
    from fairbench.report.store import check_writable, fresh_directory, run_name

    check_writable(result_dir)
    specs = [spec.model_copy(update={"seed": spec.seed + n}) for n in range(num_runs)]
    parent = fresh_directory(result_dir, f"{run_name(spec)}-x{num_runs}")
    with interruptible() as interrupted:
        summaries = _run_all(specs, parent, interrupted, show=show)
    if not summaries:
        raise typer.Exit(interrupted.exit_code)
    combined = combine(summaries)
    text = json.dumps(combined, indent=2, allow_nan=False) + "\n"
    (parent / "intervals.json").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(combined, allow_nan=False))
        typer.echo(f"fairbench: saved to {parent}", err=True)
    else:
        typer.echo("\n".join([*as_lines(combined), f"files  {parent}"]))
    if not combined["complete"]:
        raise typer.Exit(interrupted.exit_code)


def _run_all(
    specs: list[ExperimentSpec], parent: Path, interrupted: Interruption, *, show: bool
) -> list[dict[str, Any]]:
    """The summaries in order of the seeds; after an interruption, those of the runs begun."""
    jobs = min(len(specs), os.cpu_count() or 1)
    # Spawned, so that a process starts clean whatever threads this one has.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        left = futures = [pool.submit(_run_one, spec, parent) for spec in specs]
        with _progress(len(specs), show) as advance:
            while left and not interrupted():
                done, waiting = wait(left, timeout=POLL_S, return_when=FIRST_COMPLETED)
                advance(len(done))
                left = list(waiting)
        for future in left:
            future.cancel()  # no effect on those that run: they end, or are interrupted themselves
        return [future.result() for future in futures if not future.cancelled()]


def _run_one(spec: ExperimentSpec, parent: Path) -> dict[str, Any]:
    """In a process of its own: one run, saved; returns its summary."""
    from fairbench.cli.interrupt import interruptible
    from fairbench.cli.run import save
    from fairbench.report.manifest import Stopwatch
    from fairbench.sim.run import simulate

    watch = Stopwatch.start()
    with interruptible() as interrupted:
        result = simulate(spec, interrupted=interrupted)
        save(parent, spec, result, watch)
    return result.summary


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """A bar over the runs on stderr; silent off a terminal or when not wanted."""
    if not (show and sys.stderr.isatty()):
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda done: bar.advance(task, done)
