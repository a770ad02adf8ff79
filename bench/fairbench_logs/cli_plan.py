"""``fairbench plan``: find the smallest cluster that meets targets at a fixed load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer
from typer import Option

from fairbench import config, execute, figures, report, results
from fairbench.api.logs import NUM_RUNS
from fairbench.cli import options
from fairbench.cli.output import print_json, show
from fairbench.config.flags import PICTURE, RESUME, RUN, SEEDS, PlanFlags
from fairbench.config.parse_flags import COMMON, parse_assignments, split_commas, values_of
from fairbench.errors import RunFailed, UsageError
from fairbench.execute.executors import LOCAL, executor_named
from fairbench_logs import diagnosis, planning

# The default of --dp is SIZES, or ONE with --max users. The default of --loads is LOADS.
SIZES, ONE, LOADS = "1..32", "1", "1"
RANGE = re.compile(r"([0-9]{1,5})(?:\.\.([0-9]{1,5}))?")


@options.takes(PlanFlags)
def plan(
    slo: Annotated[
        list[str] | None,
        options.option(
            COMMON,
            "Target that the cluster must meet, such as 'ttft_p99<2s' or "
            "'min_share>80%'; may be repeated.",
            metavar="METRIC<LIMIT",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        options.option_of(
            RUN["scheduler"],
            "Schedulers. The plan is for the first; other schedulers are shown as alternatives.",
            metavar="A,B",
        ),
    ] = None,
    dp: Annotated[
        str | None,
        options.option_of(
            RUN["dp"], "Range of replicas to search.", default=SIZES, metavar="LOW..HIGH"
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        options.option_of(
            RUN["gpu"],
            "Timing profiles. The plan is for the first; other profiles are shown as alternatives.",
            metavar="A,B",
        ),
    ] = None,
    max: Annotated[
        str | None,
        Option(
            "--max",
            metavar="users",
            help="Find the largest number of users (clients) that --dp replicas can serve within "
            "the latency targets, instead of the smallest number of replicas.",
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        Option(metavar="GPU=X", help="Hourly price of each GPU type, in any currency; repeatable."),
    ] = None,
    loads: Annotated[
        str | None,
        Option(
            metavar="X,Y",
            help="Loads for which plan searches a cluster, in multiples of the workload's load. "
            f"[default: {LOADS}]",
        ),
    ] = None,
    settings: options.Settings = None,
    num_runs: Annotated[
        int | None,
        options.option_of(
            SEEDS,
            "Number of seeds of each cluster size; all sizes use the same seeds.",
            default=NUM_RUNS,
        ),
    ] = None,
    certain: Annotated[
        bool,
        Option(
            "--certain",
            help="Count a target as met only if the metric's whole 95% interval meets it.",
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
        options.option_of(
            PICTURE, "Draw load against replicas into this file (.svg, .png or .pdf), too."
        ),
    ] = None,
    result_dir: options.ResultDir = options.DEFAULT_RESULT_DIR,
    resume: Annotated[
        Path | None, options.option_of(RESUME, "Directory of an interrupted plan to continue.")
    ] = None,
    as_json: Annotated[bool, options.json_option("the answer")] = False,
    executor: options.ExecutorName = LOCAL,
    ray_address: options.RayAddress = None,
    disable_tqdm: options.NoProgress = False,
    **flags: Unpack[PlanFlags],
) -> None:
    """Find the smallest cluster that meets targets at a fixed load.

    The search is a bisection; all cluster sizes are simulated with the same seeds. The command
    exits with code 1 if no size in the range meets the targets with the first scheduler on the
    first GPU.
    """
    from fairbench_logs.planning.carry_out import begin_plan, carry_out, question_of

    if plot is not None:
        figures.check_plot(plot)
    runs_on = executor_named(executor, ray_address)
    if resume is None:
        low, high = _replica_range(dp or (SIZES if max is None else ONE))
        question = planning.PlanQuestion(
            tuple(slo or ()),
            split_commas("--scheduler", scheduler or RUN["scheduler"].default),
            *(low, high, flags, parse_assignments(settings)),
            gpus=split_commas("--gpu", gpu or RUN["gpu"].default),
            loads=sorted(values_of(float)("--loads", loads or LOADS)),
            prices=_prices(price),
            num_runs=num_runs or NUM_RUNS,
            certain=certain,
            every=every,
            sharing=not no_sharing,
            most=max or "",
        )
        store = begin_plan(question, result_dir)
    else:
        own = (slo, flags, settings, scheduler, dp, max, gpu, price, loads, num_runs)
        if any((*own, certain, every, no_sharing)):
            raise options.only_resumed(resume, "plan")
        store = results.SweepStore(resume)
        question_of(store)
    with execute.run_context(None if disable_tqdm else report.shown_progress(), runs_on) as context:
        answer = carry_out(store, context, diagnosis.recorded_waits(question_of(store), context))
    if plot is not None:
        figures.draw_plan(answer, plot, "; ".join(planning.head_lines(answer)))
    print_plan(answer, store.path, as_json=as_json)
    size = answer.get("size", "replicas")
    lacking = [row for row in answer["choices"] if row[size] is None]
    planned = (answer["choices"][0]["scheduler"], answer["choices"][0]["gpu"])
    mine = [row["tried"] for row in lacking if (row["scheduler"], row["gpu"]) == planned]
    if mine and size != "replicas":
        raise RunFailed("no tested number of users meets the targets")
    if mine:
        every = all(len(tried) > answer["high"] - answer["low"] for tried in mine)
        whole = f"no number of replicas from {answer['low']} to {answer['high']} meets the targets"
        raise RunFailed(
            f"{whole}{'' if every else ' (some sizes were not tested; give --every to test all)'}"
        )


def print_plan(answer: Mapping[str, Any], path: Path, *, as_json: bool) -> None:
    """Print the result of a capacity plan on stdout, as text or JSON."""
    if as_json:
        print_json(answer, path)
        return
    show(planning.answer_text, answer)
    typer.echo(f"files  {path / results.ANSWER}")


def _replica_range(text: str) -> tuple[int, int]:
    match = RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"--dp {text}: write LOW..HIGH, such as 1..32, at most {config.MAX_REPLICAS:,}"
        )
    return int(match[1]), int(match[2] or match[1])


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
