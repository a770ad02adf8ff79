"""``fairbench run --num-runs N``: one experiment over several seeds, in parallel processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairbench.config import ExperimentSpec


def run_repeatedly(
    spec: ExperimentSpec, num_runs: int, result_dir: Path, *, as_json: bool, show: bool
) -> None:
    """Run seeds ``spec.seed`` and up; each run is saved as usual, inside one fresh directory.

    That directory also gets ``intervals.json``. On Ctrl-C, runs that have ended are kept.
    """
    from fairbench.report.intervals import as_lines, combine
    from fairbench.report.store import check_writable, fresh_directory, run_name

    check_writable(result_dir)
    specs = [spec.model_copy(update={"seed": spec.seed + n}) for n in range(num_runs)]
    parent = fresh_directory(result_dir, f"{run_name(spec)}-x{num_runs}")
    summaries = _run_all(specs, parent, show=show)
    combined = combine(summaries)
    text = json.dumps(combined, indent=2, allow_nan=False) + "\n"
    (parent / "intervals.json").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(combined, allow_nan=False))
        typer.echo(f"fairbench: saved to {parent}", err=True)
    else:
        typer.echo("\n".join([*as_lines(combined), f"files  {parent}"]))
    if not combined["complete"]:
        raise typer.Exit(130)


def _run_all(specs: list[ExperimentSpec], parent: Path, *, show: bool) -> list[dict[str, Any]]:
    """The summaries in order of the seeds."""
    jobs = min(len(specs), os.cpu_count() or 1)
    # Spawned, so that a process starts clean whatever threads this one has.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_run_one, spec, parent) for spec in specs]
        try:
            with _progress(len(specs), show) as advance:
                for _ in as_completed(futures):
                    advance()
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
            ended = [future.result() for future in futures if not future.cancelled()]
            if not ended:
                raise
            return [summary | {"complete": False} for summary in ended]
        return [future.result() for future in futures]


def _run_one(spec: ExperimentSpec, parent: Path) -> dict[str, Any]:
    """In a process of its own: one run, saved; returns its summary."""
    from fairbench.cli.run import save
    from fairbench.report.manifest import Stopwatch
    from fairbench.sim.run import simulate

    watch = Stopwatch.start()
    result = simulate(spec)
    save(parent, spec, result, watch)
    return result.summary


@contextmanager
def _progress(total: int, show: bool) -> Iterator[Callable[[], None]]:
    """A bar over the runs on stderr; silent off a terminal or when not wanted."""
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=total)
        yield lambda: bar.advance(task)
