"""``fairbench run --num-runs N``: one experiment over several seeds, in parallel processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairbench.cli.main import FAILED

if TYPE_CHECKING:
    from fairbench.cli.bench_file import OnSaved
    from fairbench.config import ExperimentSpec
    from fairbench.execute.interruption import Interruption


def run_repeatedly(
    spec: ExperimentSpec,
    num_runs: int,
    result_dir: Path,
    on_saved: OnSaved,
    *,
    as_json: bool,
    show: bool,
) -> None:
    """Run seeds ``spec.seed`` and up; each run is saved as usual, inside one fresh directory.

    That directory also gets ``intervals.json``. On Ctrl-C, what was begun is kept as it stands.
    """
    from fairbench.execute.interruption import interruptible
    from fairbench.results.directories import check_writable, fresh_directory
    from fairbench.results.store import run_name

    check_writable(result_dir)
    specs = [spec.model_copy(update={"seed": spec.seed + n}) for n in range(num_runs)]
    parent = fresh_directory(result_dir, f"{run_name(spec)}-x{num_runs}")
    with interruptible() as interrupted:
        summaries = run_all(specs, parent, interrupted, show=show)
    conclude(summaries, parent, on_saved, interrupted, as_json=as_json)


def conclude(
    summaries: Sequence[dict[str, Any]],
    parent: Path,
    on_saved: OnSaved,
    interrupted: Interruption,
    *,
    as_json: bool,
) -> None:
    """Write and print what runs that differ in the seed give together; exit if interrupted."""
    from fairbench.cli.output import print_json
    from fairbench.report.interval_lines import repeat_lines
    from fairbench.results.intervals import INTERVALS_FILE, combine
    from fairbench.results.store import runs_in, write_json

    if not summaries:
        raise typer.Exit(interrupted.exit_code)
    combined = combine(summaries)
    write_json(parent / INTERVALS_FILE, combined)
    for run in sorted(runs_in(parent), key=lambda run: int(run.summary["seed"])):
        on_saved(run)
    if as_json:
        print_json(combined)
        typer.echo(f"fairbench: saved to {parent}", err=True)
    else:
        typer.echo("\n".join([*repeat_lines(combined), f"files  {parent}"]))
    if not combined["complete"]:
        raise typer.Exit(interrupted.exit_code if interrupted() else FAILED)


def run_all(
    specs: Sequence[ExperimentSpec], parent: Path, interrupted: Interruption, *, show: bool
) -> list[dict[str, Any]]:
    """The summaries in order of the seeds; after an interruption, those of the runs begun.

    Raises what a run raised, once all have ended.
    """
    from fairbench.cli.progress import task_progress
    from fairbench.execute.local_processes import Failure, run_tasks

    tasks = [partial(run_one, spec, parent) for spec in specs]
    with (
        task_progress(show, [1.0] * len(specs)) as done,
        closing(run_tasks(tasks, interrupted)) as running,
    ):
        results = {}
        for index, result in running:
            results[index] = result
            done(index)
    for result in results.values():
        if isinstance(result, Failure):
            raise result.error
    return [summary for _, summary in sorted(results.items())]


def run_one(spec: ExperimentSpec, parent: Path, interrupted: Interruption) -> dict[str, Any]:
    """In a process of its own: one run, saved; returns its summary."""
    from fairbench.cli.run_once import save
    from fairbench.results.manifest import Stopwatch
    from fairbench.sim.run import simulate

    watch = Stopwatch.start()
    result = simulate(spec, interrupted=interrupted)
    save(parent, spec, result, watch)
    return result.summary
