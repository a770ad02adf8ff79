"""``fairbench run``: one experiment on the simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.report.manifest import Stopwatch
    from fairbench.sim.run import RunResult

DEFAULT_RESULT_DIR = Path("results/runs")


def run(
    experiment: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; flags override it."),
    ] = None,
    scheduler: Annotated[
        str | None,
        Option(help="Pair of router and local scheduler, see `list schedulers`. [default: d2lpm]"),
    ] = None,
    router: Annotated[str | None, Option(help="Another router than the pair's.")] = None,
    local: Annotated[str | None, Option(help="Another local scheduler than the pair's.")] = None,
    dp: Annotated[int | None, Option(help="Replicas of the model. [default: 1]")] = None,
    workload: Annotated[
        str | None,
        Option(metavar="NAME|FILE.toml", help="What the clients run. [default: tot]"),
    ] = None,
    scenario: Annotated[
        str | None,
        Option(
            metavar="none|s1|s2",
            help="Who misbehaves: nobody, by load (s1), by program shape (s2). [default: s1]",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(help="Timing profile id or a unique prefix, see `list profiles`. [default: a100]"),
    ] = None,
    model: Annotated[str | None, Option(help="Model served. [default: llama-3.1-8b]")] = None,
    num_programs: Annotated[
        int | None,
        Option(help="Programs each well-behaved client sends; lifts the default duration."),
    ] = None,
    request_rate: Annotated[
        float | None,
        Option(
            help="Programs/s of each well-behaved client over the whole cluster; `inf` is all at "
            "once. [default: the workload's, times dp]"
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        Option(help="Shape of the Gamma arrivals: 1 is Poisson, less is burstier. [default: 1]"),
    ] = None,
    clients: Annotated[
        int | None, Option(help="Number of clients. [default: the workload's]")
    ] = None,
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    seed: Annotated[int | None, Option(help="Seed of everything random. [default: 0]")] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME.PARAM=VALUE",
            help="Any parameter of a scheduler, the engine or the workload; may be repeated.",
        ),
    ] = None,
    mem_fraction_static: Annotated[
        float | None, Option(help="Share of GPU memory for weights and KV (as in SGLang).")
    ] = None,
    max_total_tokens: Annotated[
        int | None, Option(help="KV pool in tokens, instead of the formula.")
    ] = None,
    max_running_requests: Annotated[int | None, Option(help="Most requests in one batch.")] = None,
    chunked_prefill_size: Annotated[
        int | None, Option(help="Most prompt tokens in one prefill iteration.")
    ] = None,
    timing_error: Annotated[
        float | None,
        Option(help="Perturb the timing profile by up to so many percent, one draw a run."),
    ] = None,
    num_runs: Annotated[
        int, Option(min=1, help="Repeat over so many seeds; metrics get 95% bootstrap intervals.")
    ] = 1,
    dataset_path: Annotated[
        str | None, Option(help="Real input: a local file, or hf:NAME from the hub.")
    ] = None,
    tokenizer: Annotated[
        str | None, Option(help="tokenizer.json that counts the tokens of real input.")
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Each run makes one fresh directory in here.")
    ] = DEFAULT_RESULT_DIR,
    tag: Annotated[str | None, Option(help="A word of yours, kept with the result.")] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the summary as one JSON object, and nothing else.")
    ] = False,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Run one experiment on the simulated cluster and say who got what.

    Everything has a default: `fairbench run` alone works.
    """
    flags = {
        "scheduler": scheduler,
        "router": router,
        "local": local,
        "dp": dp,
        "workload": workload,
        "scenario": scenario,
        "gpu": gpu,
        "model": model,
        "num_programs": num_programs,
        "request_rate": request_rate,
        "burstiness": burstiness,
        "clients": clients,
        "duration_s": duration,
        "seed": seed,
        "dataset_path": dataset_path,
        "tokenizer": tokenizer,
        "tag": tag,
    }
    engine = {
        "engine.mem_fraction_static": mem_fraction_static,
        "engine.max_total_tokens": max_total_tokens,
        "engine.max_running_requests": max_running_requests,
        "engine.chunked_prefill_size": chunked_prefill_size,
        "engine.timing_error_pct": timing_error,
    }
    spec = _resolve(experiment, _given(flags), _given(engine), settings or [])
    if num_runs > 1:
        from fairbench.cli.repeat import run_repeatedly

        run_repeatedly(spec, num_runs, result_dir, as_json=as_json, show=not disable_tqdm)
    else:
        _run(spec, result_dir, as_json=as_json, show_progress=not disable_tqdm)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _resolve(
    experiment: Path | None, flags: dict[str, Any], engine: dict[str, Any], texts: list[str]
) -> ExperimentSpec:
    from fairbench.config.resolve import read_experiment, resolve
    from fairbench.config.toml import parse_assignment

    assignments = engine | dict(parse_assignment(text) for text in texts)
    file = read_experiment(experiment) if experiment else None
    return resolve(flags, assignments, file, path=experiment)


def _run(spec: ExperimentSpec, result_dir: Path, *, as_json: bool, show_progress: bool) -> None:
    from fairbench.cli.interrupt import interruptible
    from fairbench.cli.output import print_json, print_summary
    from fairbench.cli.progress import live_progress
    from fairbench.report.manifest import Stopwatch
    from fairbench.report.store import check_writable
    from fairbench.sim.run import simulate

    check_writable(result_dir)
    watch = Stopwatch.start()
    with interruptible() as interrupted:
        with live_progress(show_progress) as on_progress:
            result = simulate(spec, on_progress=on_progress, interrupted=interrupted)
        path = save(result_dir, spec, result, watch)
    if as_json:
        print_json(result.summary)
        typer.echo(f"fairbench: saved to {path}", err=True)
    else:
        print_summary(result.summary, path, complete=result.complete)
    if not result.complete:
        typer.echo("fairbench: interrupted; what had finished is saved", err=True)
        raise typer.Exit(interrupted.exit_code)


def save(parent: Path, spec: ExperimentSpec, result: RunResult, watch: Stopwatch) -> Path:
    """Save a result into a fresh directory in ``parent``; returns the directory."""
    from fairbench.report.manifest import build_manifest
    from fairbench.report.store import save_run

    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    tables = {
        "requests": result.requests,
        "programs": result.programs,
        "service": result.service,
    }
    return save_run(parent, spec, tables, result.summary, manifest)
