"""``fairbench sweep``: run a grid of experiments in parallel, and compare the runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer
from typer import Option

from fairbench import config, execute, report, results
from fairbench.cli import options
from fairbench.cli.output import print_comparison, print_json, print_outcome
from fairbench.config.flags import READY_S, RESUME, SEEDS, SETTINGS, SweepFlags
from fairbench.execute.executors import LOCAL, check_executor, executor_named

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.execute import OutdatedRun
    from fairbench.execute.repeats import SweepOutcome


@options.takes(SweepFlags)
def sweep(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE.toml", help="Name of a bundled sweep, such as fig7, or a sweep file."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        options.option_of(
            SETTINGS,
            "Values of any parameter of a scheduler, the engine or the workload; may be repeated.",
            metavar="NAME.PARAM=V,W",
        ),
    ] = None,
    num_runs: Annotated[
        int | None,
        options.option_of(
            SEEDS,
            "Number of seeds of each point; metrics get 95% confidence intervals.",
            # The sweep, not this option, checks the limits on the number of seeds.
            **{"least": None, "most": None},
        ),
    ] = None,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Run each point with 40 programs of each well-behaved client and three "
            "seeds, unless other flags set these numbers.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        Option(
            help="Name of the sweep and of the directory with its runs. [default: the "
            "sweep's name in the sweep file]"
        ),
    ] = None,
    result_dir: options.ResultDir = options.DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None, options.option_of(RESUME, "Directory of an interrupted sweep to continue.")
    ] = None,
    reuse: Annotated[
        list[Path] | None,
        Option(
            metavar="DIR",
            help="Directory of a sweep whose finished points are copied instead of run again; "
            "may be repeated.",
        ),
    ] = None,
    flush_cache: Annotated[
        bool,
        Option(
            "--flush-cache",
            help="Empty the servers' caches between two runs on the same servers. The flag has "
            "no effect, because fairbench always empties the caches; SGLang's benchmark has a "
            "flag of this name.",
        ),
    ] = True,
    server_python: options.ServerPython = None,
    allow_untested_release: options.AllowUntested = False,
    ready_check_timeout_sec: options.ReadyTimeout = READY_S,
    executor: options.ExecutorName = LOCAL,
    ray_address: options.RayAddress = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the points of the sweep without running them.")
    ] = False,
    as_json: Annotated[bool, options.json_option("the comparison")] = False,
    disable_tqdm: options.NoProgress = False,
    **flags: Unpack[SweepFlags],
) -> None:
    """Run a grid of experiments in parallel and compare their results.

    The grid has every combination of schedulers, workloads and settings, from a file, from flags,
    or from both; flags override the file.
    """
    from fairbench.config import identity

    axes = dict(config.parse_axis(text) for text in settings or [])
    if resume is not None:
        if file or flags or axes or num_runs or quick or name or reuse:
            raise options.only_resumed(resume, "sweep")
        store = results.SweepStore(resume)
        specs = config.points(store.sweep(), file=str(store.file))
        finished = set(store.finished())
    else:
        swept = config.sweep_of(file, flags, axes, num_runs=num_runs, name=name, quick=quick)
        specs = config.points(swept, file=file)
        finished = set()
    check_executor(executor, ray_address)
    if dry_run:
        _list([one for one in specs if identity(one) not in finished], as_json=as_json)
        return
    runs_on = executor_named(executor, ray_address)
    others = [results.SweepStore(folder) for folder in reuse or ()]
    for other in others:
        other.sweep()  # This call raises DataError if the directory contains no sweep.
    live = execute.LiveFlags(
        server_python, ready_check_timeout_sec, allow_untested=allow_untested_release
    )
    execute.check_live_points(specs, live)
    if resume is None:
        store = results.SweepStore.create(result_dir, swept, specs)
        for other in others:
            outdated = execute.outdated_runs(other.finished(), specs)
            _print_outdated(other, outdated)
            store.take_from(other, [one.identity for one in outdated])
    with execute.run_context(None if disable_tqdm else report.shown_progress(), runs_on) as context:
        outcome = execute.run_sweep(store, specs, live, context)
    _print(outcome, as_json=as_json)
    outcome.require_whole()


def _print_outdated(other: results.SweepStore, outdated: Sequence[OutdatedRun]) -> None:
    if outdated:
        runs = "1 run is" if len(outdated) == 1 else f"{len(outdated)} runs are"
        typer.echo(f"fairbench: {other.path}: {runs} not reused: {outdated[0]}", err=True)


def _list(specs: Sequence[ExperimentSpec], *, as_json: bool) -> None:
    requests = [round(execute.expected_requests(spec, spec.client_plans())) for spec in specs]
    named = list(zip(results.point_names(specs), requests, strict=True))
    if as_json:
        print_json({"points": [{"name": name, "requests": count} for name, count in named]})
        return
    for name, count in named:
        typer.echo(f"{name}: about {count:,} requests")
    if (whole := execute.estimate(requests)).large:
        typer.echo(f"fairbench: {whole}; plus the simulations of clients alone", err=True)
    number = "1 point" if len(specs) == 1 else f"{len(specs)} points"
    typer.echo(f"{number}, about {sum(requests):,} requests in all")


def _print(outcome: SweepOutcome, *, as_json: bool) -> None:
    path = outcome.store.path
    if as_json:
        print_json(outcome.comparison, path)
    elif outcome.cells:
        print_comparison(outcome.cells, path)
    else:
        typer.echo(f"files  {path}")
    print_outcome(outcome)
