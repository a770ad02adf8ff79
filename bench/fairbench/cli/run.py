"""``fairbench run``: one experiment on the simulated cluster, or on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from fairbench.cli.bench_file import OutputDetails, OutputFile
from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    AllowUntested,
    Eviction,
    Gateway,
    Goodput,
    MemoryRecords,
    Percentiles,
    Preset,
    Settings,
    assigned,
    goodput_flag,
    parse_headers,
    split_args,
    split_command,
    with_key,
)
from fairbench.cli.launcher_flags import (
    DriverLauncher,
    Hosts,
    LaunchCommand,
    Launcher,
    RayAddress,
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
from fairbench.execute.launchers import (
    LOCAL,
    LauncherFlags,
    driver_launcher_named,
    launcher_named,
)
from fairbench.hardware.engines import ENGINES


def run(
    experiment_file: Annotated[
        Path | None,
        typer.Argument(metavar="EXPERIMENT.toml", help="Experiment file; flags override it."),
    ] = None,
    preset: Preset = None,
    scheduler: Annotated[
        str | None,
        Option(help="Pair of router and local scheduler, see `list schedulers`. [default: d2lpm]"),
    ] = None,
    router: Annotated[str | None, Option(help="Another router than the pair's.")] = None,
    local: Annotated[str | None, Option(help="Another local scheduler than the pair's.")] = None,
    routers: Annotated[
        int | None,
        Option(
            help="Number of routers that share the fleet, in the form of `--set routers.form`. "
            "[default: 1]"
        ),
    ] = None,
    gateway: Gateway = None,
    saturation: Annotated[
        str | None,
        Option(
            metavar="DETECTOR", help="Saturation detector of the gateway. [default: utilization]"
        ),
    ] = None,
    dp: Annotated[int | None, Option(help="Replicas of the model. [default: 1]")] = None,
    workload: Annotated[
        str | None,
        Option(metavar="NAME|FILE.toml", help="Workload of the clients. [default: tot]"),
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
    scenario: Annotated[
        str | None,
        Option(
            metavar="none|s1|s2",
            help="Heavy clients: none, by load (s1), by program shape (s2). [default: s1]",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(help="Timing profile id or a unique prefix, see `list profiles`. [default: a100]"),
    ] = None,
    model: Annotated[str | None, Option(help="Model served. [default: llama-3.1-8b]")] = None,
    engine: Annotated[
        str | None,
        Option(
            metavar="|".join(ENGINES), help="Engine of the simulated workers. [default: sglang]"
        ),
    ] = None,
    eviction: Eviction = None,
    memory_records: MemoryRecords = None,
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
        Option(
            help="Shape of the Gamma arrivals: 1 is Poisson, less is burstier, `inf` is even. "
            "[default: 1]"
        ),
    ] = None,
    clients: Annotated[
        int | None,
        Option(help="Number of clients; with --trace, made-up ones. [default: the workload's]"),
    ] = None,
    weights: Annotated[
        str | None,
        Option(
            metavar="NAME=WEIGHT,...",
            help="Weights: entitlements relative to 1. [default: the workload's, else 1]",
        ),
    ] = None,
    goodput: Goodput = None,
    percentiles: Percentiles = None,
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    window: Annotated[
        str | None,
        Option(
            metavar="arrivals|whole",
            help="Measure while programs arrive, or the whole run. [default: arrivals]",
        ),
    ] = None,
    seed: Annotated[int | None, Option(help="Seed of everything random. [default: 0]")] = None,
    settings: Settings = None,
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
    max_prefill_tokens: Annotated[
        int | None, Option(help="Most uncached prompt tokens admitted in one pass.")
    ] = None,
    schedule_conservativeness: Annotated[
        float | None,
        Option(help="Fraction of max_new_tokens that admission reserves (as in SGLang)."),
    ] = None,
    timing_error: Annotated[
        float | None,
        Option(help="Perturb the timing profile by up to so many percent, one draw a run."),
    ] = None,
    num_runs: Annotated[
        int, Option(min=1, help="Repeat over so many seeds; metrics get 95% intervals.")
    ] = 1,
    dataset_path: Annotated[
        str | None, Option(help="Real input: a local file, or hf:NAME from the hub.")
    ] = None,
    tokenizer: Annotated[
        str | None, Option(help="tokenizer.json that counts the tokens of real input.")
    ] = None,
    backend: Annotated[
        str | None,
        Option(
            metavar="|".join((SIM, *STARTED)),
            help="Simulate, or start servers and drive them over HTTP: emulated ones, SGLang, "
            "vLLM. "
            "[default: sim]",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        Option(help="Benchmark the OpenAI-compatible server at this URL as it is; starts none."),
    ] = None,
    api: Annotated[
        str | None,
        Option(
            metavar="generate|completions|chat",
            help="API to send to. [default: generate; completions with --base-url]",
        ),
    ] = None,
    output_lengths: Annotated[
        str | None,
        Option(
            metavar="exact|free",
            help="Ask --base-url for min_tokens, or let it end answers early. [default: exact]",
        ),
    ] = None,
    extra_body: Annotated[
        str | None,
        Option(
            metavar="JSON",
            help="More fields for every request to --base-url, as a JSON object; null removes one.",
        ),
    ] = None,
    max_tokens_field: Annotated[
        str | None,
        Option(
            metavar="max_tokens|max_completion_tokens",
            help="Name of the field for the output limit at --base-url. [default: max_tokens]",
        ),
    ] = None,
    rate_limited: Annotated[
        str | None,
        Option(
            metavar="fail|wait",
            help="Response to a 429 of --base-url: fail, or wait for Retry-After and try again. "
            "[default: fail]",
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None, Option(help="Most requests under way at real servers. [default: no limit]")
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="Sent with every request to --base-url, never stored."),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Key of --base-url, a line: sent as Authorization: Bearer KEY, never stored.",
        ),
    ] = None,
    tp: Annotated[int | None, Option(help="GPUs of each server. [default: 1]")] = None,
    share_gpus: Annotated[
        bool, Option("--share-gpus", help="Let SGLang servers share GPUs if there are too few.")
    ] = False,
    schedule_policy: Annotated[
        str | None,
        Option(
            metavar="fcfs|lpm",
            help="The servers' own scheduling (vLLM: fcfs), not a local scheduler of fairbench.",
        ),
    ] = None,
    load_format: Annotated[
        str | None,
        Option(help="Load format as in SGLang; `dummy` needs no weights, only a config.json."),
    ] = None,
    server_arg: Annotated[
        list[str] | None,
        Option(metavar="'--FLAG VALUE'", help="Any other flag of each server; may be repeated."),
    ] = None,
    server_python: Annotated[
        str | None,
        Option(
            help="Python that has SGLang or vLLM. [default: $FAIRBENCH_SGLANG_PYTHON or "
            "$FAIRBENCH_VLLM_PYTHON, or this one]"
        ),
    ] = None,
    allow_untested_release: AllowUntested = False,
    launcher: Launcher = LOCAL,
    ray_address: RayAddress = None,
    hosts: Hosts = None,
    launch_command: LaunchCommand = None,
    drivers: Annotated[
        int, Option(min=1, help="Processes that send the load, each of some of the clients.")
    ] = 1,
    driver_launcher: DriverLauncher = LOCAL,
    ready_check_timeout_sec: Annotated[
        float, Option(min=1, help="Seconds within which servers have to be ready.")
    ] = 600.0,
    time_scale: Annotated[
        float | None,
        Option(
            help="Seconds of the trace, or without one of an emulated server's time, in a second. "
            "[default: 1]"
        ),
    ] = None,
    router_command: Annotated[
        str | None,
        Option(
            metavar="'CMD {port} {worker_urls} ...'",
            help="Start somebody else's router before emulated servers, and measure it. "
            "docs/guide/live.md names the placeholders.",
        ),
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Parent directory; each run makes a new directory in it.")
    ] = DEFAULT_RESULT_DIR,
    tag: Annotated[str | None, Option(help="A word of yours, kept with the result.")] = None,
    output_file: OutputFile = None,
    output_details: OutputDetails = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the summary as one JSON object, and nothing else.")
    ] = False,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Run one experiment and say who got what.

    On the simulated cluster, or on real servers. Everything has a default: `fairbench run` alone
    works.
    """
    from fairbench.cli.bench_file import run_lines
    from fairbench.cli.progress import shown_progress
    from fairbench.cli.run_endings import run_once, run_repeatedly
    from fairbench.config.weights import parse_weights
    from fairbench.execute.context import run_context
    from fairbench.execute.requests import FLAGS, experiment
    from fairbench.live.backends.base import LiveOptions
    from fairbench.live.backends.registry import check_live, try_untested
    from fairbench.workloads.traces.columns import parse_names

    named = locals()  # flags by name, as fairbench.run takes them too
    flags: dict[str, Any] = {name: named.get(name) for name in FLAGS}
    flags |= {"server_args": split_args(server_arg), "weights": parse_weights(weights)}
    flags["goodput"] = goodput_flag(goodput)
    flags["trace_map"] = parse_names(trace_map) or None
    flags["misbehaving"] = heavy_clients(misbehaving)
    flags["router_command"] = split_command("--router-command", router_command)
    spec = experiment(flags, assigned(settings), experiment_file)
    if allow_untested_release:
        try_untested(spec)
    places = LauncherFlags(ray_address, hosts, launch_command)
    driven_from = driver_launcher_named(driver_launcher, places)  # first: the other reads its name
    options = LiveOptions(
        server_python,
        ready_check_timeout_sec,
        with_key(parse_headers(header), api_key_file),
        launcher_named(launcher, places, drivers=driver_launcher),
        drivers,
        driven_from,
    )
    check_live(spec, options)
    on_saved = run_lines(output_file, details=output_details)
    with run_context(shown_progress(not disable_tqdm)) as context:
        if num_runs > 1:
            run_repeatedly(spec, num_runs, options, result_dir, on_saved, context, as_json=as_json)
        else:
            run_once(spec, options, result_dir, on_saved, context, as_json=as_json)
