"""``fairbench plan``: the smallest cluster that meets targets at a fixed load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fairbench.cli.executor_flags import ExecutorName, RayAddress
from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    Gateway,
    Goodput,
    Settings,
    assigned,
    given,
    goodput_flag,
    split_commas,
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
from fairbench.errors import RunFailed, UsageError
from fairbench.execute.executors import LOCAL, executor_named
from fairbench.hardware.engines import ENGINES

RANGE = re.compile(r"([0-9]{1,5})(?:\.\.([0-9]{1,5}))?")


def plan(
    slo: Annotated[
        list[str] | None,
        Option(
            metavar="METRIC<LIMIT",
            help="Target that the cluster must meet, such as 'ttft_p99<2s' or "
            "'min_share>80%'; may be repeated.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Schedulers. The plan is for the first; the others are shown as "
            "alternatives. [default: d2lpm]",
        ),
    ] = None,
    dp: Annotated[
        str | None,
        Option(metavar="LOW..HIGH", help="Range of replicas to search. [default: 1..32]"),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(
            metavar="A,B",
            help="Timing profiles. The plan is for the first; the others are shown as "
            "alternatives. [default: a100]",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        Option(metavar="GPU=X", help="Price of a GPU per hour; may be repeated."),
    ] = None,
    loads: Annotated[
        str | None,
        Option(
            metavar="X,Y",
            help="Multiples of the load to plan for, such as 0.5,1,2. [default: 1]",
        ),
    ] = None,
    workload: Annotated[
        str | None, Option(metavar="NAME|FILE.toml", help="Workload of the clients. [default: tot]")
    ] = None,
    trace: Annotated[
        str | None, Option(metavar="FILE", help="Recorded traffic to replay instead of a workload.")
    ] = None,
    trace_format: TraceFormat = None,
    trace_map: TraceMap = None,
    trace_line: TraceLine = None,
    trace_block_size: TraceBlockSize = None,
    trace_spread: Annotated[
        bool,
        Option(
            "--trace-spread",
            help="Spread requests evenly where the trace records them in batches with equal times.",
        ),
    ] = False,
    clients_from: ClientsFrom = None,
    misbehaving: Misbehaving = None,
    time_scale: Annotated[
        float | None,
        Option(help="Speed of the replay: seconds of the trace per second. [default: 1]"),
    ] = None,
    scenario: Annotated[
        str | None,
        Option(metavar="none|s1|s2", help="Scenario of the heavy clients. [default: s1]"),
    ] = None,
    model: Annotated[str | None, Option(help="Model served. [default: llama-3.1-8b]")] = None,
    engine: Annotated[
        str | None,
        Option(
            metavar="|".join(ENGINES), help="Engine of the simulated workers. [default: sglang]"
        ),
    ] = None,
    gateway: Gateway = None,
    saturation: Annotated[
        str | None, Option(metavar="DETECTOR", help="Saturation detector of the gateway.")
    ] = None,
    request_rate: Annotated[
        float | None,
        Option(
            help="Programs/s of each well-behaved client over the whole cluster. [default: the "
            "workload's for one replica of the first GPU]"
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        Option(
            help="Shape of the Gamma distribution of arrivals: 1 is Poisson, less is burstier. "
            "[default: 1]"
        ),
    ] = None,
    clients: Annotated[
        int | None,
        Option(
            help="Number of clients; with --trace, its requests are divided among this many "
            "invented clients."
        ),
    ] = None,
    num_programs: Annotated[
        int | None, Option(help="Number of programs that each well-behaved client sends.")
    ] = None,
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="NAME=W,...",
            help="Weights of clients; a client that is not named has weight 1.",
        ),
    ] = None,
    goodput: Goodput = None,
    settings: Settings = None,
    seed: Annotated[int | None, Option(help="The first seed. [default: 0]")] = None,
    num_runs: Annotated[
        int | None,
        Option(
            min=1,
            help="Number of seeds of each cluster size; all sizes use the same seeds. [default: 3]",
        ),
    ] = None,
    certain: Annotated[
        bool,
        Option(
            "--certain", help="Accept a target only if its whole 95% confidence interval meets it."
        ),
    ] = False,
    every: Annotated[
        bool, Option("--every", help="Try every number of replicas instead of a binary search.")
    ] = False,
    no_sharing: Annotated[
        bool,
        Option(
            "--no-sharing",
            help="Skip the final simulations of each client alone on a cluster of its own.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        Option(
            metavar="FILE.svg",
            help="Draw load against replicas into this file (.svg, .png or .pdf), too.",
        ),
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Parent directory; the plan makes a new directory in it.")
    ] = DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of an interrupted plan to continue.")
    ] = None,
    as_json: Annotated[
        bool, Option("--json", help="Print the answer as one JSON object, and nothing else.")
    ] = False,
    executor: ExecutorName = LOCAL,
    ray_address: RayAddress = None,
    disable_tqdm: Annotated[
        bool, Option("--disable-tqdm", help="Do not show live progress.")
    ] = False,
) -> None:
    """Find the smallest cluster that meets latency and fairness targets at a fixed load.

    The search is binary, and all cluster sizes use the same seeds. Exits with code 1 if no size in
    the range meets the targets with the first scheduler on the first GPU.
    """
    from fairbench.capacity.carry_out import asked, begin, carry_out
    from fairbench.capacity.question import FLAGS, NUM_RUNS, Question
    from fairbench.capacity.table import head_lines
    from fairbench.cli.progress import shown_progress
    from fairbench.cli.sweep_output import print_plan
    from fairbench.config.defaults import DEFAULTS
    from fairbench.config.weights import parse_weights
    from fairbench.execute.context import run_context
    from fairbench.figures.capacity import check_plot, draw_plan
    from fairbench.results.sweep_store import SweepStore
    from fairbench.workloads.traces.columns import parse_names

    named = locals()
    if plot is not None:
        check_plot(plot)
    runs_on = executor_named(executor, ray_address)
    flags: dict[str, Any] = {name: named.get(name) for name in FLAGS}
    flags |= {
        "weights": parse_weights(weights),
        "goodput": goodput_flag(goodput),
        "trace_map": parse_names(trace_map) or None,
        "trace_spread": trace_spread or None,
        "misbehaving": heavy_clients(misbehaving),
    }
    flags = given(flags)
    if resume is None:
        low, high = _range(dp or "1..32")
        question = Question(
            tuple(slo or ()),
            split_commas("--scheduler", scheduler or DEFAULTS["scheduler"]),
            *(low, high, flags, assigned(settings)),
            gpus=split_commas("--gpu", gpu or DEFAULTS["gpu"]),
            loads=_loads(loads or "1"),
            prices=_prices(price),
            num_runs=num_runs or NUM_RUNS,
            certain=certain,
            every=every,
            sharing=not no_sharing,
        )
        store = begin(question, result_dir)
    else:
        own = (slo, flags, settings, scheduler, dp, gpu, price, loads, num_runs)
        if any((*own, certain, every, no_sharing)):
            raise UsageError(
                f"--resume {resume} continues the plan with its stored settings; no other "
                "setting can be given with it"
            )
        store = SweepStore(resume)
        asked(store)
    with run_context(shown_progress(not disable_tqdm), runs_on) as context:
        answer = carry_out(store, context)
    if plot is not None:
        draw_plan(answer, plot, "; ".join(head_lines(answer)))
    print_plan(answer, store.path, as_json=as_json)
    lacking = [row for row in answer["choices"] if row["replicas"] is None]
    planned = (answer["choices"][0]["scheduler"], answer["choices"][0]["gpu"])
    mine = [row["tried"] for row in lacking if (row["scheduler"], row["gpu"]) == planned]
    if mine:
        every = all(len(tried) > answer["high"] - answer["low"] for tried in mine)
        whole = f"no number of replicas from {answer['low']} to {answer['high']} meets the targets"
        raise RunFailed(
            f"{whole}{'' if every else ' among the tested numbers (--every tests all)'}"
        )


def _range(text: str) -> tuple[int, int]:
    from fairbench.config.spec import MAX_REPLICAS

    match = RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--dp {text}: write LOW..HIGH, such as 1..32, at most {MAX_REPLICAS:,}")
    return int(match[1]), int(match[2] or match[1])


def _loads(text: str) -> list[float]:
    try:
        return sorted(float(word) for word in split_commas("--loads", text))
    except ValueError:
        raise UsageError(f"--loads {text}: must be numbers, separated by commas") from None


def _prices(texts: list[str] | None) -> dict[str, float]:
    prices = {}
    for text in texts or ():
        gpu, _, amount = text.partition("=")
        if gpu.strip() in prices:
            raise UsageError(
                f"--price {text}: the price of {gpu.strip()} is given twice; give it once"
            )
        try:
            prices[gpu.strip()] = float(amount)
        except ValueError:
            raise UsageError(f"--price {text}: write GPU=X, such as a100=1.8") from None
    return prices
