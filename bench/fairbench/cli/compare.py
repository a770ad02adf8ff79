"""``fairbench compare``: experiments against the first, paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    Decode,
    Gateway,
    Goodput,
    Percentiles,
    Prefill,
    Preset,
    Settings,
    assigned,
    given,
    goodput_flag,
)
from fairbench.cli.trace_flags import (
    ClientsFrom,
    Misbehaving,
    TraceBlockSize,
    TraceFormat,
    TraceLine,
    TraceMap,
    heavy_clients,
)
from fairbench.config.backend_names import SIM, STARTED
from fairbench.hardware.engines import ENGINES

if TYPE_CHECKING:
    from fairbench.execute.comparison import Compared
    from fairbench.results.contrast import Contrast


def compare(
    sides: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="A B [C ...]",
            help="Schedulers, experiment files (FILE.toml) or directories of stored runs; the "
            "first is the baseline. One directory alone: its schedulers, place by place.",
        ),
    ] = None,
    preset: Preset = None,
    workload: Annotated[
        str | None, Option(metavar="NAME|FILE.toml", help="Workload of the clients. [default: tot]")
    ] = None,
    trace: Annotated[
        str | None,
        Option(metavar="FILE", help="Play recorded traffic instead of a workload."),
    ] = None,
    trace_format: TraceFormat = None,
    trace_map: TraceMap = None,
    trace_line: TraceLine = None,
    trace_block_size: TraceBlockSize = None,
    trace_spread: Annotated[
        bool, Option("--trace-spread", help="Spread requests that a trace has in batches.")
    ] = False,
    clients_from: ClientsFrom = None,
    misbehaving: Misbehaving = None,
    time_scale: Annotated[
        float | None, Option(help="Seconds of the trace in a second. [default: 1]")
    ] = None,
    scenario: Annotated[
        str | None,
        Option(metavar="none|s1|s2", help="Scenario of the heavy clients. [default: s1]"),
    ] = None,
    dp: Annotated[int | None, Option(help="Replicas of the model. [default: 1]")] = None,
    prefill: Prefill = None,
    decode: Decode = None,
    gateway: Gateway = None,
    saturation: Annotated[
        str | None, Option(metavar="DETECTOR", help="Saturation detector of the gateway.")
    ] = None,
    gpu: Annotated[str | None, Option(help="Timing profile id or a unique prefix.")] = None,
    model: Annotated[str | None, Option(help="Model served.")] = None,
    engine: Annotated[
        str | None,
        Option(metavar="|".join(ENGINES), help="Engine to simulate. [default: sglang]"),
    ] = None,
    backend: Annotated[
        str | None,
        Option(metavar="|".join((SIM, *STARTED)), help="Simulate, or start servers, as in `run`."),
    ] = None,
    num_programs: Annotated[
        int | None, Option(help="Programs each well-behaved client sends.")
    ] = None,
    request_rate: Annotated[
        float | None, Option(help="Programs/s of each well-behaved client over the cluster.")
    ] = None,
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    weights: Annotated[
        str | None,
        Option(metavar="NAME=W,...", help="Weights of clients: how much each is entitled to."),
    ] = None,
    goodput: Goodput = None,
    percentiles: Percentiles = None,
    settings: Settings = None,
    seed: Annotated[int | None, Option(help="The first seed. [default: 0]")] = None,
    num_runs: Annotated[
        int | None, Option(min=1, help="Seeds of each. [default: 5, or those that are stored]")
    ] = None,
    metric: Annotated[
        list[str] | None,
        Option(
            metavar="KEY",
            help="Compare these metrics only, such as victim_p99_s or clients.NAME.p99_s; may be "
            "repeated.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            metavar="SCHEDULER", help="Baseline within a single directory. [default: the first]"
        ),
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Parent of the new directory of these runs.")
    ] = DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None,
        Option(
            metavar="DIR",
            help="Go on with the comparison in this directory, or over more "
            "seeds, with --num-runs.",
        ),
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the comparison as one JSON object, and nothing else.")
    ] = False,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Compare experiments over common seeds: better, worse or cannot tell.

    Every metric gets the difference to the baseline, paired by seed, and its 95% interval.
    """
    from fairbench.cli.progress import shown_progress
    from fairbench.config.weights import parse_weights
    from fairbench.execute.comparison import carry_out, go_on, read_alone
    from fairbench.execute.comparison_plan import check_usage, plan_comparison
    from fairbench.execute.context import run_context
    from fairbench.workloads.traces.columns import parse_names

    flags = given(
        {
            "preset": preset,
            "workload": workload,
            "trace": trace,
            "trace_format": trace_format,
            "trace_map": parse_names(trace_map) or None,
            "trace_line": trace_line,
            "trace_block_size": trace_block_size,
            "trace_spread": trace_spread or None,
            "clients_from": clients_from,
            "misbehaving": heavy_clients(misbehaving),
            "time_scale": time_scale,
            "engine": engine,
            "scenario": scenario,
            "dp": dp,
            "prefill": prefill,
            "decode": decode,
            "gateway": gateway,
            "saturation": saturation,
            "gpu": gpu,
            "model": model,
            "backend": backend,
            "num_programs": num_programs,
            "request_rate": request_rate,
            "duration": duration,
            "weights": parse_weights(weights),
            "goodput": goodput_flag(goodput),
            "percentiles": percentiles,
            "seed": seed,
        }
    )
    arguments, assignments = [str(side) for side in sides or []], assigned(settings)
    runs = ["num_runs"] if num_runs and resume is None and len(arguments) == 1 else []
    check_usage(arguments, resume, baseline, given=[*flags, *assignments, *runs])
    if resume is None and len(arguments) == 1:
        compared = read_alone(Path(arguments[0]), baseline)
    else:
        plan = None if resume else plan_comparison(arguments, flags, assignments, num_runs)
        with run_context(shown_progress(not disable_tqdm)) as context:
            if plan is None:
                compared = go_on(Path(resume or ""), num_runs, context)
            else:
                compared = carry_out(plan, result_dir, context)
    _print(compared, metric, as_json=as_json)
    if compared.outcome is not None:
        compared.outcome.require_whole()


def _print(compared: Compared, metrics: list[str] | None, *, as_json: bool) -> None:
    """Print the comparison; failed runs and comparability warnings go to stderr."""
    from fairbench.cli.output import look, print_json
    from fairbench.metrics.catalogue import key_of
    from fairbench.report.contrast_table import contrast_text, shown_metrics
    from fairbench.results.contrast import check_metrics, contrast, contrast_json, known_metrics

    sides = [side for group in compared.groups for side in group]
    metrics = [key_of(name) for name in metrics or ()]
    if metrics:
        check_metrics(metrics, sides)
    known = known_metrics(sides)
    usual = known if as_json else [key for key in shown_metrics(sides) if key in known]
    chosen = metrics or usual
    contrasts = [
        contrast(group[0], other, chosen) for group in compared.groups for other in group[1:]
    ]
    path = compared.outcome.store.path if compared.outcome else None
    if as_json:
        print_json(contrast_json(contrasts))
    else:
        colour, width = look()
        typer.echo(contrast_text(contrasts, colour=colour, width=width), nl=False)
        _advise(contrasts, path)
    if compared.outcome is not None:
        if as_json:
            typer.echo(f"fairbench: saved to {path}", err=True)
        for failure in compared.outcome.failures:
            typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
        for remark in compared.outcome.remarks():
            typer.echo(f"fairbench: {remark}", err=True)


def _advise(contrasts: list[Contrast], path: Path | None) -> None:
    """Print where the comparison is stored, and how to add seeds if they may settle a metric."""
    if path is None:
        return
    typer.echo(f"files  {path}")
    more = [row.more_seeds for one in contrasts for row in one.metrics if row.more_seeds]
    if more:
        seeds = len(contrasts[0].seeds)
        typer.echo(f"more seeds  fairbench compare --resume {path} --num-runs {seeds + min(more)}")
