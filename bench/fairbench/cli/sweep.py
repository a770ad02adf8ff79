"""``fairbench sweep``: a grid of experiments in parallel, compared by configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fairbench.cli.executor_flags import ExecutorName, RayAddress
from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    Goodput,
    Percentiles,
    Preset,
    goodput_flag,
    split_commas,
)
from fairbench.config.backend_names import SIM, STARTED
from fairbench.errors import UsageError
from fairbench.execute.executors import LOCAL, executor_named

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.execute.sweeps import SweepOutcome


def sweep(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE.toml", help="Name of a bundled sweep, such as fig7, or a sweep file."
        ),
    ] = None,
    preset: Preset = None,
    schedulers: Annotated[
        str | None, Option(metavar="A,B", help="Schedulers to compare, see `list schedulers`.")
    ] = None,
    workloads: Annotated[
        str | None, Option(metavar="A,B", help="Workloads, by name or path.")
    ] = None,
    scenarios: Annotated[str | None, Option(metavar="A,B", help="Scenarios: none, s1, s2.")] = None,
    dp: Annotated[str | None, Option(metavar="1,2", help="Numbers of replicas.")] = None,
    evictions: Annotated[
        str | None,
        Option(
            metavar="A,B", help="Eviction policies of simulated replicas, see `list evictions`."
        ),
    ] = None,
    gateways: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Policies of the gateway, see `list gateways`; `none` runs without a gateway.",
        ),
    ] = None,
    saturations: Annotated[
        str | None,
        Option(metavar="A,B", help="Saturation detectors of the gateways, see `list gateways`."),
    ] = None,
    routers: Annotated[
        str | None, Option(metavar="1,2", help="Numbers of routers that share the workers.")
    ] = None,
    router: Annotated[
        str | None, Option(metavar="A,B", help="Routers to use instead of the schedulers' own.")
    ] = None,
    local: Annotated[
        str | None,
        Option(metavar="A,B", help="Local schedulers to use instead of the schedulers' own."),
    ] = None,
    request_rate: Annotated[
        str | None,
        Option(
            metavar="X,Y",
            help="Programs per second that each well-behaved client sends to the whole "
            "cluster. [default: the workload's, times dp]",
        ),
    ] = None,
    clients: Annotated[str | None, Option(metavar="2,8", help="Numbers of clients.")] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME.PARAM=V,W",
            help="Values of a parameter of a scheduler, the engine or the workload; may be "
            "repeated.",
        ),
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="NAME=WEIGHT,...",
            help="Weights of clients; a client of weight 2 is entitled to twice the service. "
            "[default: the workload's, else 1]",
        ),
    ] = None,
    goodput: Goodput = None,
    percentiles: Percentiles = None,
    gpu: Annotated[
        str | None, Option(help="Timing profile: its id or a unique prefix, see `list profiles`.")
    ] = None,
    model: Annotated[str | None, Option(help="Model served, see `list profiles`.")] = None,
    backend: Annotated[
        str | None,
        Option(
            metavar="|".join((SIM, *STARTED)),
            help="Simulate all points (sim), or run them on real servers one after another. A "
            "sweep file configures the servers in a table [base.backend]. [default: sim]",
        ),
    ] = None,
    num_programs: Annotated[
        int | None, Option(help="Number of programs that each well-behaved client sends.")
    ] = None,
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    seed: Annotated[int | None, Option(help="The first seed.")] = None,
    num_runs: Annotated[
        int | None,
        Option(help="Number of seeds of each point; metrics get 95% confidence intervals."),
    ] = None,
    quick: Annotated[
        bool,
        Option(
            "--quick",
            help="Run each point with 40 programs of each well-behaved client and three "
            "seeds, unless other flags override this.",
        ),
    ] = False,
    name: Annotated[
        str | None, Option(help="Name of the sweep and its directory. [default: the file's]")
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Parent directory; the sweep makes a new directory in it.")
    ] = DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of an interrupted sweep to continue.")
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
            help="Empty the caches of servers between runs that share the servers. This is always "
            "done; the flag exists because SGLang has it.",
        ),
    ] = True,
    server_python: Annotated[
        str | None,
        Option(
            help="Path of a Python that has SGLang. [default: $FAIRBENCH_SGLANG_PYTHON, or the "
            "Python that runs fairbench]"
        ),
    ] = None,
    ready_check_timeout_sec: Annotated[
        float, Option(min=1, help="Seconds within which servers must be ready.")
    ] = 600.0,
    executor: ExecutorName = LOCAL,
    ray_address: RayAddress = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the points of the sweep, and run nothing.")
    ] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the comparison as one JSON object, and nothing else.")
    ] = False,
    disable_tqdm: Annotated[
        bool, Option("--disable-tqdm", help="Do not show live progress.")
    ] = False,
) -> None:
    """Run a grid of experiments and compare them.

    The grid is every combination of schedulers, workloads and settings. It comes from a file, from
    flags, or from both: flags override the values of the file.
    """
    from fairbench.cli.progress import shown_progress
    from fairbench.config import identity
    from fairbench.config.sweep import parse_axis
    from fairbench.config.sweep_points import points
    from fairbench.config.weights import parse_weights
    from fairbench.execute.context import run_context
    from fairbench.execute.live_check import check_live_points
    from fairbench.execute.requests import sweep_of
    from fairbench.execute.sweeps import run_sweep
    from fairbench.live.backends.base import LiveOptions
    from fairbench.results.sweep_store import SweepStore

    flags = {
        "schedulers": _axis("--schedulers", schedulers, str),
        "workloads": _axis("--workloads", workloads, str),
        "scenarios": _axis("--scenarios", scenarios, str),
        "dp": _axis("--dp", dp, int),
        "gateways": _axis("--gateways", gateways, str),
        "evictions": _axis("--evictions", evictions, str),
        "saturations": _axis("--saturations", saturations, str),
        "routers": _axis("--routers", routers, int),
        "router": _axis("--router", router, str),
        "local": _axis("--local", local, str),
        "request_rate": _axis("--request-rate", request_rate, float),
        "clients": _axis("--clients", clients, int),
        "preset": preset,
        "weights": parse_weights(weights),
        "goodput": goodput_flag(goodput),
        "percentiles": percentiles,
        "gpu": gpu,
        "model": model,
        "backend": backend,
        "num_programs": num_programs,
        "duration": duration,
        "seed": seed,
    }
    axes = dict(parse_axis(text) for text in settings or [])
    if resume is not None:
        given = any(value is not None for value in flags.values())
        if file or given or axes or num_runs or quick or name or reuse:
            raise UsageError(
                f"--resume {resume} continues the sweep with its stored settings; no "
                "other setting can be given with it"
            )
        store = SweepStore(resume)
        specs = points(store.sweep(), file=str(store.file))
        finished = set(store.finished())
    else:
        swept = sweep_of(file, flags, axes, num_runs=num_runs, name=name, quick=quick)
        specs = points(swept, file=file)
        finished = set()
    if dry_run:
        _list([one for one in specs if identity(one) not in finished], as_json=as_json)
        return
    runs_on = executor_named(executor, ray_address)
    others = [SweepStore(folder) for folder in reuse or ()]
    for other in others:
        other.sweep()  # raises for what is no store
    options = LiveOptions(server_python, ready_check_timeout_sec)
    check_live_points(specs, options)
    if resume is None:
        store = SweepStore.create(result_dir, swept, specs)
        for other in others:
            store.take_from(other)
    with run_context(shown_progress(not disable_tqdm), runs_on) as context:
        outcome = run_sweep(store, specs, options, context)
    _print(outcome, as_json=as_json)
    outcome.require_whole()


def _axis(flag: str, text: str | None, read: Callable[[str], Any]) -> list[Any] | None:
    """Return the values between the commas, or None without a text."""
    if text is None:
        return None
    try:
        return [read(word) for word in split_commas(flag, text)]
    except ValueError:
        kind = "whole numbers" if read is int else "numbers"
        raise UsageError(f"{flag} {text}: must be {kind}, separated by commas") from None


def _list(specs: Sequence[ExperimentSpec], *, as_json: bool) -> None:
    """Print the points, and the expected number of requests of each."""
    from fairbench.cli.output import print_json
    from fairbench.execute.estimate import estimate
    from fairbench.execute.sweep_jobs import expected_requests
    from fairbench.results.grid import point_names

    requests = [round(expected_requests(spec, spec.client_plans())) for spec in specs]
    named = list(zip(point_names(specs), requests, strict=True))
    if as_json:
        print_json({"points": [{"name": name, "requests": count} for name, count in named]})
        return
    for name, count in named:
        typer.echo(f"{name}: about {count:,} requests")
    if (whole := estimate(requests)).large:
        typer.echo(f"fairbench: {whole}; simulations of clients alone are added", err=True)
    number = "1 point" if len(specs) == 1 else f"{len(specs)} points"
    typer.echo(f"{number}, about {sum(requests):,} requests in all")


def _print(outcome: SweepOutcome, *, as_json: bool) -> None:
    """Print the comparison; failed runs and warnings go to stderr."""
    from fairbench.cli.output import print_json
    from fairbench.cli.sweep_output import print_comparison

    path = outcome.store.path
    if as_json:
        print_json(outcome.comparison)
        typer.echo(f"fairbench: saved to {path}", err=True)
    else:
        if outcome.cells:
            print_comparison(outcome.cells, path)
        else:
            typer.echo(f"files  {path}")
        for failure in outcome.failures:
            typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
    for remark in outcome.remarks():
        typer.echo(f"fairbench: {remark}", err=True)
