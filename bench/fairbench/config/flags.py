"""Declarations of the flags of experiments, and tables of the flags of each command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from fairbench.config.parse_flags import (
    CLUSTER,
    COMMON,
    LOAD,
    OUTPUT,
    SCHEDULER,
    SERVERS,
    SIM,
    STARTED,
    WORKLOAD,
    Flag,
    columns_of,
    flags_of,
    goodput_flag,
    names_of,
    parse_assignments,
    parse_weights,
    split_commas,
    split_words,
    values_of,
)
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES
from fairbench.workloads.traces import AUTO, FORMATS, MAPPED


class LogFlags(TypedDict, total=False):
    """Flags that describe the format of a log or trace."""

    trace_format: Annotated[
        str | None,
        Flag(
            f"Format of the trace: {', '.join((AUTO, *FORMATS))}.",
            WORKLOAD,
            "auto, the first that fits",
            "FORMAT",
            key="trace.format",
        ),
    ]
    trace_map: Annotated[
        Mapping[str, str] | None,
        Flag(
            "Column of the trace that holds a field, if its name is not a common one; may be "
            f"repeated. Fields: {', '.join(MAPPED)}. time_ms is the time in milliseconds, and "
            "so on. To ignore a field, write no column name after the equals sign: session=.",
            WORKLOAD,
            metavar="FIELD=COLUMN",
            key="trace.columns",
            option="--map",
            read=columns_of,
            repeats=True,
        ),
    ]
    trace_line: Annotated[
        int | None,
        Flag(
            "Number of the run, from 1, in a trace file with one run a line.",
            WORKLOAD,
            key="trace.line",
            least=1,
        ),
    ]
    time_unit: Annotated[
        str | None,
        Flag(
            "Unit of times whose column does not state it: s, ms, us or ns.",
            WORKLOAD,
            "from the file",
            "s|ms|us|ns",
            key="trace.time_unit",
        ),
    ]
    clients_from: Annotated[
        str | None,
        Flag(
            "Column of the trace that names the client of a request.",
            WORKLOAD,
            metavar="COLUMN",
            key="trace.client",
        ),
    ]


class TraceFlags(LogFlags, total=False):
    """Flags for reading traces: all flags for logs, and the size of the blocks in ``hash_ids``."""

    trace_block_size: Annotated[
        int | None,
        Flag(
            "Tokens of each block in hash_ids.",
            WORKLOAD,
            "from the file or format",
            key="trace.block_size",
            least=1,
        ),
    ]


class EveryFlags(TypedDict, total=False):
    """Flags that ``run``, ``compare``, ``plan`` and ``sweep`` have in common."""

    weights: Annotated[
        Mapping[str, float] | None,
        Flag(
            "Weights of clients; a client that is not named has weight 1.",
            WORKLOAD,
            "the workload's, else 1",
            "NAME=WEIGHT,...",
            read=lambda _, text: parse_weights(text),
        ),
    ]
    num_programs: Annotated[
        int | None,
        Flag(
            "Number of programs that each well-behaved client sends; the default duration "
            "then no longer limits the run.",
            LOAD,
        ),
    ]
    duration: Annotated[
        float | None,
        Flag("Seconds during which programs arrive.", COMMON, key="duration_s", unit="s"),
    ]
    model: Annotated[
        str | None, Flag("Model served, see `list profiles`.", CLUSTER, "llama-3.1-8b")
    ]
    goodput: Annotated[
        Mapping[str, str] | None,
        Flag(
            "Target of every request, or of those of a client or class NAME: ttft, tpot or e2el, "
            "in ms, s, or x as a multiple of the latency alone; may be repeated.",
            OUTPUT,
            "the workload's",
            "[NAME.]LATENCY:TIME",
            read=lambda _, texts: goodput_flag(texts),
            repeats=True,
        ),
    ]


class SetupFlags(TypedDict, total=False):
    """Flags that ``run``, ``compare`` and ``sweep`` have in common."""

    preset: Annotated[
        str | None,
        Flag(
            "Start from a paper's documented settings, see `list presets`; other flags override "
            "them.",
            COMMON,
            "none",
            "NAME|FILE.toml",
        ),
    ]
    gpu: Annotated[
        str | None,
        Flag("Timing profile: its id or a unique prefix, see `list profiles`.", COMMON, "a100"),
    ]
    percentiles: Annotated[
        str | None,
        Flag(
            "Percentiles of latency to compute and show, such as 50,90,95,99.",
            OUTPUT,
            "P50, and P95 or P99",
            "P,P,...",
        ),
    ]
    charge_pass: Annotated[
        bool | None,
        Flag(
            "Delay each iteration by the measured CPU time of the scheduling pass of "
            "--engine-code; two runs then differ.",
            CLUSTER,
        ),
    ]


class SeedFlags(TypedDict, total=False):
    """The flags of ``compare``, ``plan`` and ``sweep``, which repeat runs with several seeds."""

    seed: Annotated[int | None, Flag("The first seed.", COMMON, 0)]


class SingleFlags(TraceFlags, EveryFlags, total=False):
    """Flags of ``run``, ``compare`` and ``plan`` that ``sweep`` lacks, or defines differently."""

    workload: Annotated[
        str | None, Flag("Workload of the clients.", COMMON, "tot", "NAME|FILE.toml")
    ]
    trace: Annotated[
        str | None,
        Flag(
            "Recorded traffic to replay instead of a workload.",
            COMMON,
            metavar="FILE",
            key="trace.file",
        ),
    ]
    scenario: Annotated[
        str | None,
        Flag(
            "Heavy clients: none, by load (s1), by program shape (s2).", COMMON, "s1", "none|s1|s2"
        ),
    ]
    trace_spread: Annotated[
        bool,
        Flag(
            "Spread requests evenly where the trace records them in batches with equal times.",
            WORKLOAD,
            key="trace.spread",
        ),
    ]
    misbehaving: Annotated[
        Sequence[str] | None,
        Flag(
            "Heavy clients of the trace; metrics of the well-behaved clients omit them.",
            WORKLOAD,
            metavar="A,B",
            key="trace.misbehaving",
            read=split_commas,
        ),
    ]
    gateway: Annotated[
        str | None,
        Flag("Queue requests before the router, see `list gateways`.", SCHEDULER, "none", "POLICY"),
    ]
    saturation: Annotated[
        str | None,
        Flag("Saturation detector of the gateway.", SCHEDULER, "utilization", "DETECTOR"),
    ]
    engine: Annotated[
        str | None,
        Flag("Engine of the simulated workers.", CLUSTER, DEFAULT_ENGINE, "|".join(ENGINES)),
    ]


class ServedFlags(TypedDict, total=False):
    """Flags of ``run`` and ``compare``, which either simulate a cluster or measure servers."""

    dp: Annotated[int | None, Flag("Replicas of the model.", COMMON, 1)]
    prefill: Annotated[
        int | None,
        Flag(
            "Simulated replicas that only compute prompts; needs --decode instead of --dp.",
            COMMON,
            "none",
            "P",
        ),
    ]
    decode: Annotated[
        int | None,
        Flag("Simulated replicas that generate the answers of --prefill.", COMMON, "none", "D"),
    ]
    request_rate: Annotated[
        float | None,
        Flag(
            "Programs/s of each well-behaved client over the whole cluster; `inf`: all at time 0.",
            LOAD,
            "the workload's, times dp",
            unit="programs/s",
        ),
    ]
    time_scale: Annotated[
        float | None,
        Flag(
            "Seconds of the trace, or of an emulated server's time, per real second.",
            LOAD,
            1,
            key="backend.",
        ),
    ]
    backend: Annotated[
        str | None,
        Flag(
            "Simulate, or start servers and drive them over HTTP: emulated ones, SGLang, vLLM.",
            SERVERS,
            SIM,
            "|".join((SIM, *STARTED)),
            key="backend.kind",
        ),
    ]


class ArrivalFlags(TypedDict, total=False):
    """Flags that ``run`` and ``plan`` have in common."""

    clients: Annotated[
        int | None,
        Flag(
            "Number of clients; with --trace, its requests are divided among this many "
            "invented clients.",
            WORKLOAD,
            "the workload's",
        ),
    ]
    burstiness: Annotated[
        float | None,
        Flag(
            "Shape of the Gamma arrivals: 1 is Poisson, less is burstier, `inf` is even.", LOAD, 1
        ),
    ]


ENGINE_CODE = Flag(
    "Python that has SGLang or vLLM: the engine's own scheduling code, stock or changed, decides "
    "in the simulated workers; `installed` is the Python that runs fairbench.",
    CLUSTER,
    "fairbench's model",
    "PYTHON|installed",
)


class CompareFlags(SetupFlags, SingleFlags, ServedFlags, SeedFlags, total=False):
    """Flags of ``fairbench compare``; see ``fairbench compare --help``."""

    engine_code: Annotated[
        str | Sequence[str] | None,
        ENGINE_CODE.but(
            f"{ENGINE_CODE.help} Repeat the flag to compare codes.",
            repeats=True,
            read=lambda _, texts: list(texts),
        ),
    ]


COMPARE = flags_of(CompareFlags)


class PlanFlags(SingleFlags, ArrivalFlags, SeedFlags, total=False):
    """Flags of ``fairbench plan`` that describe the load, explained in the command's ``--help``."""

    request_rate: Annotated[
        float | None,
        COMPARE["request_rate"].but(
            "Programs/s of each well-behaved client over the whole cluster.",
            default="the workload's for one replica of the first GPU",
        ),
    ]
    time_scale: Annotated[
        float | None, COMPARE["time_scale"].but("Seconds of the trace in a second.")
    ]


PLAN = flags_of(PlanFlags)


def _engine(help: str, unit: str = "") -> Flag:
    return Flag(help, CLUSTER, key="engine.", unit=unit)


def _server(help: str, default: Any = "", metavar: str | None = None, **rest: Any) -> Flag:
    return Flag(help, SERVERS, default, metavar, key="backend.", **rest)


class RunFlags(SetupFlags, SingleFlags, ArrivalFlags, ServedFlags, total=False):
    """Flags of ``fairbench run``, which the command's ``--help`` describes."""

    scheduler: Annotated[
        str | None,
        Flag(
            "Scheduler: a pair of router and local scheduler, see `list schedulers`.",
            COMMON,
            "d2lpm",
        ),
    ]
    seed: Annotated[int | None, COMPARE["seed"].but("Seed of everything random.")]
    dataset_path: Annotated[
        str | None,
        Flag(
            "Data set of real prompts: a local file, or hf:NAME from the Hugging Face hub.",
            WORKLOAD,
        ),
    ]
    dataset_map: Annotated[
        Mapping[str, str] | None,
        Flag(
            "Field of the data set that holds a text, such as prompt=question; may be repeated.",
            WORKLOAD,
            metavar="FIELD=NAME",
            read=names_of,
            repeats=True,
        ),
    ]
    tokenizer: Annotated[
        str | None, Flag("File tokenizer.json that counts the tokens of real prompts.", WORKLOAD)
    ]
    max_concurrency: Annotated[
        int | None,
        Flag("Maximum requests in flight at real servers.", LOAD, "no limit", key="backend."),
    ]
    engine_code: Annotated[str | None, ENGINE_CODE]
    router: Annotated[str | None, Flag("Router to use instead of the scheduler's own.", SCHEDULER)]
    local: Annotated[
        str | None, Flag("Local scheduler to use instead of the scheduler's own.", SCHEDULER)
    ]
    routers: Annotated[
        int | None,
        Flag(
            "Number of routers that share the fleet, in the form of `--set routers.form`.",
            SCHEDULER,
            1,
        ),
    ]
    mem_fraction_static: Annotated[
        float | None, _engine("Fraction of GPU memory for weights and KV cache (as in SGLang).")
    ]
    max_total_tokens: Annotated[
        int | None,
        _engine(
            "Size of the KV pool in tokens, instead of the size computed from the GPU's memory.",
            unit="tokens",
        ),
    ]
    max_running_requests: Annotated[int | None, _engine("Limit on requests in one batch.")]
    chunked_prefill_size: Annotated[
        int | None, _engine("Limit on prompt tokens in one prefill iteration.", unit="tokens")
    ]
    max_prefill_tokens: Annotated[
        int | None,
        _engine(
            "Limit on uncached prompt tokens that are admitted in one scheduling pass.",
            unit="tokens",
        ),
    ]
    schedule_conservativeness: Annotated[
        float | None, _engine("Fraction of max_new_tokens that admission reserves (as in SGLang).")
    ]
    timing_error: Annotated[
        float | None,
        Flag(
            "Largest random error, in percent, of the timing profile and of each coefficient.",
            CLUSTER,
            key="timing.error_pct",
            unit="%",
        ),
    ]
    eviction: Annotated[
        str | None,
        Flag(
            "Eviction policy of KV memory, see `list evictions`; simulations record who holds "
            "the memory.",
            CLUSTER,
            "lru, without records",
            "POLICY",
        ),
    ]
    memory_records: Annotated[
        bool | None,
        Flag(
            "Record which client holds KV memory and which client evicts which, with the "
            "default policy.",
            CLUSTER,
        ),
    ]
    base_url: Annotated[
        str | None,
        _server("URL of a running OpenAI-compatible server to benchmark; no server is started."),
    ]
    api: Annotated[
        str | None,
        _server(
            "API to send to.", "generate; completions with --base-url", "generate|completions|chat"
        ),
    ]
    output_lengths: Annotated[
        str | None,
        _server(
            "Ask --base-url for min_tokens, or let it end answers early.", "exact", "exact|free"
        ),
    ]
    extra_body: Annotated[
        str | None,
        _server(
            "JSON object with more fields for the body of every request to --base-url; "
            "null removes a field.",
            metavar="JSON",
        ),
    ]
    max_tokens_field: Annotated[
        str | None,
        _server(
            "Name of the field for the output limit at --base-url.",
            "max_tokens",
            "max_tokens|max_completion_tokens",
        ),
    ]
    rate_limited: Annotated[
        str | None,
        _server(
            "Response to a 429 of --base-url: fail, or wait for Retry-After and try again.",
            "fail",
            "fail|wait",
        ),
    ]
    longest_wait: Annotated[
        float | None,
        Flag(
            "Longest total wait of a request after 429s, with --rate-limited wait; then it fails.",
            SERVERS,
            600,
            key="backend.longest_wait_s",
            unit="s",
        ),
    ]
    tp: Annotated[int | None, _server("GPUs of each server.", 1)]
    share_gpus: Annotated[bool, _server("Let SGLang servers share GPUs if there are too few.")]
    schedule_policy: Annotated[
        str | None,
        _server(
            "Scheduling policy of the servers, or of --engine-code, such as lpm or hrrn (vLLM: "
            "fcfs), instead of a local scheduler of fairbench.",
            metavar="POLICY",
        ),
    ]
    load_format: Annotated[
        str | None,
        _server("SGLang's name of the weights' format; `dummy` needs only a config.json."),
    ]
    server_args: Annotated[
        Sequence[str] | None,
        _server(
            "Other command-line options of each server, or of --engine-code; may be repeated.",
            metavar="'--FLAG VALUE'",
            option="--server-arg",
            read=split_words,
            repeats=True,
        ),
    ]
    router_command: Annotated[
        Sequence[str] | None,
        _server(
            "Command that starts another project's router in front of emulated servers, "
            "to measure it. docs/guide/live.md lists the placeholders.",
            metavar="'CMD {port} {worker_urls} ...'",
            read=split_words,
        ),
    ]
    window: Annotated[
        str | None,
        Flag(
            "Measure while programs arrive, or the whole run.", OUTPUT, "arrivals", "arrivals|whole"
        ),
    ]
    tag: Annotated[str | None, Flag("Label that is stored with the result.", OUTPUT)]


RUN = flags_of(RunFlags)

# Only commands have the flags from ``SETTINGS`` on. Python functions, such as ``fairbench.run``,
# lack these flags or have parameters with other names.
SETTINGS = Flag(
    "Parameter of a scheduler, the engine or the workload; may be repeated.",
    COMMON,
    metavar="NAME.PARAM=VALUE",
    option="--set",
    read=lambda _, texts: parse_assignments(texts),
    repeats=True,
)
SEEDS = Flag(
    "Number of seeds over which the run is repeated; metrics get 95% confidence intervals.",
    COMMON,
    least=1,
    most=10_000,
)
SERVER_PYTHON = Flag(
    "Path of a Python that has SGLang or vLLM.",
    SERVERS,
    "$FAIRBENCH_SGLANG_PYTHON or $FAIRBENCH_VLLM_PYTHON, or the Python that runs fairbench",
)
UNTESTED = Flag(
    "Try a release of SGLang or vLLM that is newer than the supported ones.",
    SERVERS,
    option="--allow-untested-release",
)
HOST = Flag("Address to listen on.", default="127.0.0.1")
PORT = Flag("Port to listen on; 0 chooses a free port.", least=0, most=65_535)
HEADER = Flag(
    "Header sent with every request, such as an API key; may be repeated.",
    SERVERS,
    metavar="NAME=VALUE",
)
SERVED_MODEL = Flag("Name of the model in requests.", SERVERS, "the name that the server lists")
RESUME = Flag("Directory of an interrupted run to continue.", OUTPUT, metavar="DIR")
PICTURE = Flag("Picture to draw (.svg, .png or .pdf).", metavar="FILE.svg")
READY = Flag("Seconds within which servers must be ready.", SERVERS, least=1)
READY_S = 600.0
RAY_ADDRESS = Flag(
    "Address of the head of the Ray cluster for --executor ray.",
    SERVERS,
    "auto, the cluster of this machine",
    "HOST:PORT|auto",
)


def _axis(
    name: str, metavar: str = "A,B", read: Callable[[str], Any] = str, about: str = ""
) -> Flag:
    """Declare a ``sweep`` flag that takes a list of values for the ``run`` flag ``name``."""
    return RUN[name].but(about, metavar=metavar, option="", read=values_of(read), axis=True)


class SweepFlags(SetupFlags, EveryFlags, SeedFlags, total=False):
    """Flags of ``fairbench sweep``, which the command's ``--help`` describes."""

    schedulers: Annotated[Sequence[str] | None, _axis("scheduler")]
    workloads: Annotated[Sequence[str] | None, _axis("workload")]
    scenarios: Annotated[Sequence[str] | None, _axis("scenario")]
    dp: Annotated[int | Sequence[int] | None, _axis("dp", "1,2", int)]
    prefill: Annotated[int | Sequence[int] | None, _axis("prefill", "1,2", int)]
    decode: Annotated[int | Sequence[int] | None, _axis("decode", "1,2", int)]
    evictions: Annotated[Sequence[str] | None, _axis("eviction")]
    gateways: Annotated[Sequence[str] | None, _axis("gateway")]
    saturations: Annotated[Sequence[str] | None, _axis("saturation")]
    routers: Annotated[int | Sequence[int] | None, _axis("routers", "1,2", int)]
    router: Annotated[str | Sequence[str] | None, _axis("router")]
    local: Annotated[str | Sequence[str] | None, _axis("local")]
    engine_code: Annotated[str | Sequence[str] | None, _axis("engine_code", "PYTHON,PYTHON")]
    request_rate: Annotated[float | Sequence[float] | None, _axis("request_rate", "X,Y", float)]
    clients: Annotated[
        int | Sequence[int] | None, _axis("clients", "2,8", int, "Number of clients.")
    ]
    backend: Annotated[
        str | None,
        RUN["backend"].but(
            "Simulate all points, or run them on real servers one after another; a file says how "
            "in a table [base.backend].",
            key="backend",
        ),
    ]


SWEEP = flags_of(SweepFlags)
