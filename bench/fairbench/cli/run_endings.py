"""The main part of ``fairbench run``: run the experiment, save, print and exit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairbench.cli.exits import FAILED
from fairbench.errors import RunFailed
from fairbench.metrics.tail import shown_tail

if TYPE_CHECKING:
    from fairbench.cli.bench_file import OnSaved
    from fairbench.config import ExperimentSpec
    from fairbench.execute.context import RunContext
    from fairbench.live.backends.base import LiveOptions


def run_once(
    spec: ExperimentSpec,
    options: LiveOptions,
    result_dir: Path,
    on_saved: OnSaved,
    context: RunContext,
    *,
    as_json: bool,
    explain: bool,
) -> None:
    """Run, save and print. Raises afterwards if the run is incomplete."""
    from fairbench.cli.output import print_json, print_summary
    from fairbench.execute.one_run import run_and_save
    from fairbench.results.store import read_run

    result, path = run_and_save(spec, options, result_dir, context)
    on_saved(read_run(path))
    if as_json:
        print_json(result.summary)
        typer.echo(f"fairbench: saved to {path}", err=True)
    else:
        print_summary(result.summary, path, complete=result.complete, explain=explain)
    if result.complete:
        return
    if context.interrupted():
        raise context.interrupted.ended("interrupted; the finished requests are saved")
    raise RunFailed(f"{result.summary['notes']['complete']}; the finished requests are saved")


def run_repeatedly(
    spec: ExperimentSpec,
    num_runs: int,
    options: LiveOptions,
    result_dir: Path,
    on_saved: OnSaved,
    context: RunContext,
    *,
    as_json: bool,
) -> None:
    """Run several seeds and print their combined summary; exit if they are incomplete."""
    from fairbench.cli.output import print_json
    from fairbench.execute.repeats import repeat
    from fairbench.report.interval_lines import repeat_lines

    repeats = repeat(spec, num_runs, result_dir, options, context)
    if repeats.combined is None:
        raise typer.Exit(context.interrupted.exit_code)
    for run in repeats.runs:
        on_saved(run)
    if as_json:
        print_json(repeats.combined)
        typer.echo(f"fairbench: saved to {repeats.path}", err=True)
    else:
        tail = shown_tail(run.summary for run in repeats.runs)
        typer.echo("\n".join([*repeat_lines(repeats.combined, tail), f"files  {repeats.path}"]))
    if not repeats.combined["complete"]:
        raise typer.Exit(context.interrupted.exit_code if context.interrupted() else FAILED)
