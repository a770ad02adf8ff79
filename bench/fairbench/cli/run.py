"""``fairbench run``: one experiment on the simulated cluster, or on real servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from fairbench.cli.bench_file import OutputDetails, OutputFile
from fairbench.cli.flags import (
    DEFAULT_RESULT_DIR,
    Eviction,
    Explain,
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
        typer.Argument(
            metavar="EXPERIMENT.toml", help="Experiment file; flags override its values."
        ),
    ] = None,
    preset: Preset = None,
    scheduler: Annotated[
        str | None,
        Option(
            help="Scheduler: a pair of router and local scheduler, see `list schedulers`. "
            "[default: d2lpm]"
        ),
    ] = None,
    router: Annotated[
        str | None, Option(help="Router to use instead of the scheduler's own.")
    ] = None,
    local: Annotated[
        str | None, Option(help="Local scheduler to use instead of the scheduler's own.")
    ] = None,
    routers: Annotated[
        int | None,
        Option(
            help="Number of routers that share the workers; `--set routers.form` says how "
            "they cooperate. [default: 1]"
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
        Option(metavar="FILE", help="Recorded traffic to replay instead of a workload."),
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
    scenario: Annotated[
        str | None,
        Option(
            metavar="none|s1|s2",
            help="Heavy clients: none, by load (s1), by program shape (s2). [default: s1]",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(
            help="Timing profile: its id or a unique prefix, see `list profiles`. [default: a100]"
        ),
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
        Option(
            help="Number of programs that each well-behaved client sends; the default duration "
            "then no longer limits the run."
        ),
    ] = None,
    request_rate: Annotated[
        float | None,
        Option(
            help="Programs per second that each well-behaved client sends to the whole "
            "cluster; `inf` sends all at once. [default: the workload's, times dp]"
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        Option(
            help="Shape of the Gamma distribution of arrivals: 1 is Poisson, less is "
            "burstier, `inf` is evenly spaced. [default: 1]"
        ),
    ] = None,
    clients: Annotated[
        int | None,
        Option(
            help="Number of clients; with --trace, its requests are divided among this many "
            "invented clients. [default: the workload's]"
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
    duration: Annotated[float | None, Option(help="Seconds during which programs arrive.")] = None,
    window: Annotated[
        str | None,
        Option(
            metavar="arrivals|whole",
            help="Period that is measured: while programs arrive, or the whole run. [default: "
            "arrivals]",
        ),
    ] = None,
    seed: Annotated[int | None, Option(help="Seed of all random numbers. [default: 0]")] = None,
    settings: Settings = None,
    mem_fraction_static: Annotated[
        float | None, Option(help="Fraction of GPU memory for weights and KV cache (as in SGLang).")
    ] = None,
    max_total_tokens: Annotated[
        int | None,
        Option(
            help="Size of the KV pool in tokens, instead of the size computed from the GPU's "
            "memory."
        ),
    ] = None,
    max_running_requests: Annotated[
        int | None, Option(help="Limit on requests in one batch.")
    ] = None,
    chunked_prefill_size: Annotated[
        int | None, Option(help="Limit on prompt tokens in one prefill iteration.")
    ] = None,
    max_prefill_tokens: Annotated[
        int | None,
        Option(help="Limit on uncached prompt tokens that are admitted in one scheduling pass."),
    ] = None,
    schedule_conservativeness: Annotated[
        float | None,
        Option(help="Fraction of max_new_tokens that admission reserves (as in SGLang)."),
    ] = None,
    timing_error: Annotated[
        float | None,
        Option(
            help="Largest random error of the timing profile, in percent; each run draws one error."
        ),
    ] = None,
    num_runs: Annotated[
        int,
        Option(
            min=1,
            help="Number of seeds over which the run is repeated; metrics get 95% confidence "
            "intervals.",
        ),
    ] = 1,
    dataset_path: Annotated[
        str | None,
        Option(
            help="Data set of real prompts: a local file, or hf:NAME from the Hugging Face hub."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, Option(help="File tokenizer.json that counts the tokens of real prompts.")
    ] = None,
    backend: Annotated[
        str | None,
        Option(
            metavar="|".join((SIM, *STARTED)),
            help="Simulate (sim), or start servers and send them requests over HTTP: "
            "emulators, SGLang or vLLM. [default: sim]",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        Option(
            help="URL of a running OpenAI-compatible server to benchmark; no server is started."
        ),
    ] = None,
    api: Annotated[
        str | None,
        Option(
            metavar="generate|completions|chat",
            help="API to which requests are sent. [default: generate; completions with --base-url]",
        ),
    ] = None,
    output_lengths: Annotated[
        str | None,
        Option(
            metavar="exact|free",
            help="Output lengths at --base-url: exact asks for min_tokens, free lets answers "
            "end early. [default: exact]",
        ),
    ] = None,
    extra_body: Annotated[
        str | None,
        Option(
            metavar="JSON",
            help="JSON object with more fields for the body of every request to --base-url; "
            "null removes a field.",
        ),
    ] = None,
    max_tokens_field: Annotated[
        str | None,
        Option(
            metavar="max_tokens|max_completion_tokens",
            help="Field of a request that limits the output at --base-url. [default: max_tokens]",
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
        int | None, Option(help="Limit on unfinished requests at real servers. [default: no limit]")
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(
            metavar="NAME=VALUE",
            help="Header sent with every request to --base-url; never stored; may be repeated.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="File with the API key of --base-url on one line; sent as Authorization: "
            "Bearer KEY, never stored.",
        ),
    ] = None,
    tp: Annotated[int | None, Option(help="Number of GPUs of each server. [default: 1]")] = None,
    share_gpus: Annotated[
        bool, Option("--share-gpus", help="Let SGLang servers share GPUs if there are too few.")
    ] = False,
    schedule_policy: Annotated[
        str | None,
        Option(
            metavar="fcfs|lpm",
            help="Scheduling policy of the servers themselves (vLLM: fcfs), instead of a "
            "local scheduler of fairbench.",
        ),
    ] = None,
    load_format: Annotated[
        str | None,
        Option(
            help="Format of the model's weights, as in SGLang; `dummy` needs only a config.json."
        ),
    ] = None,
    server_arg: Annotated[
        list[str] | None,
        Option(
            metavar="'--FLAG VALUE'",
            help="Other command-line options of each server; may be repeated.",
        ),
    ] = None,
    server_python: Annotated[
        str | None,
        Option(
            help="Path of a Python that has SGLang or vLLM. [default: "
            "$FAIRBENCH_SGLANG_PYTHON or $FAIRBENCH_VLLM_PYTHON, or the Python that runs "
            "fairbench]"
        ),
    ] = None,
    launcher: Launcher = LOCAL,
    ray_address: RayAddress = None,
    hosts: Hosts = None,
    launch_command: LaunchCommand = None,
    drivers: Annotated[
        int,
        Option(
            min=1,
            help="Number of processes that send the load; each sends for some of the clients.",
        ),
    ] = 1,
    driver_launcher: DriverLauncher = LOCAL,
    ready_check_timeout_sec: Annotated[
        float, Option(min=1, help="Seconds within which servers must be ready.")
    ] = 600.0,
    time_scale: Annotated[
        float | None,
        Option(
            help="Speed of the run: seconds of the trace, or of the emulators if there is no "
            "trace, per real second. [default: 1]"
        ),
    ] = None,
    router_command: Annotated[
        str | None,
        Option(
            metavar="'CMD {port} {worker_urls} ...'",
            help="Command that starts another project's router in front of emulated servers, "
            "to measure it. docs/guide/live.md lists the placeholders.",
        ),
    ] = None,
    result_dir: Annotated[
        Path, Option(help="Parent directory; each run makes a new directory in it.")
    ] = DEFAULT_RESULT_DIR,
    tag: Annotated[str | None, Option(help="Label that is stored with the result.")] = None,
    output_file: OutputFile = None,
    output_details: OutputDetails = False,
    explain: Explain = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the summary as one JSON object, and nothing else.")
    ] = False,
    disable_tqdm: Annotated[
        bool, Option("--disable-tqdm", help="Do not show live progress.")
    ] = False,
) -> None:
    """Run one experiment and print the service and latency of each client.

    Runs on the simulated cluster, or on real servers. Every option has a default: `fairbench run`
    works without any.
    """
    from fairbench.cli.bench_file import run_lines
    from fairbench.cli.output import check_explain
    from fairbench.cli.progress import shown_progress
    from fairbench.cli.run_endings import run_once, run_repeatedly
    from fairbench.config.weights import parse_weights
    from fairbench.execute.context import run_context
    from fairbench.execute.requests import FLAGS, experiment
    from fairbench.live.backends.base import LiveOptions
    from fairbench.live.backends.registry import check_live
    from fairbench.workloads.traces.columns import parse_names

    check_explain(explain, single=num_runs == 1, as_json=as_json)
    named = locals()  # flags by name, as fairbench.run takes them too
    flags: dict[str, Any] = {name: named.get(name) for name in FLAGS}
    flags |= {"server_args": split_args(server_arg), "weights": parse_weights(weights)}
    flags["goodput"] = goodput_flag(goodput)
    flags["trace_map"] = parse_names(trace_map) or None
    flags["misbehaving"] = heavy_clients(misbehaving)
    flags["router_command"] = split_command("--router-command", router_command)
    spec = experiment(flags, assigned(settings), experiment_file)
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
            run_once(spec, options, result_dir, on_saved, context, as_json=as_json, explain=explain)
