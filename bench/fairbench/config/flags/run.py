"""The flags of ``run`` that other commands lack: its scheduler, machine and servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fairbench.config.flags.experiment import (
    COMPARE,
    ArrivalFlags,
    ServedFlags,
    SetupFlags,
    SingleFlags,
)
from fairbench.config.flags.flag import (
    CLUSTER,
    COMMON,
    LOAD,
    OUTPUT,
    SCHEDULER,
    SERVERS,
    WORKLOAD,
    Flag,
    assigned,
    flags_of,
    names_of,
    split_words,
)


def _engine(help: str, unit: str = "") -> Flag:
    return Flag(help, CLUSTER, key="engine.", unit=unit)


def _server(help: str, default: Any = "", metavar: str | None = None, **rest: Any) -> Flag:
    return Flag(help, SERVERS, default, metavar, key="backend.", **rest)


class RunFlags(SetupFlags, SingleFlags, ArrivalFlags, ServedFlags, total=False):
    """Flags of ``fairbench run``; its ``--help`` describes them."""

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
            "Largest random error of the timing profile, in percent; each run draws one error.",
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
            "Scheduling policy of the servers themselves (vLLM: fcfs), instead of a "
            "local scheduler of fairbench.",
            metavar="fcfs|lpm",
        ),
    ]
    load_format: Annotated[
        str | None,
        _server("Format of the model's weights, as in SGLang; `dummy` needs only a config.json."),
    ]
    server_args: Annotated[
        Sequence[str] | None,
        _server(
            "Other command-line options of each server; may be repeated.",
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

# Flags that each command takes with a type and a default of its own, because Python's functions
# name them or lack them.
SETTINGS = Flag(
    "Parameter of a scheduler, the engine or the workload; may be repeated.",
    COMMON,
    metavar="NAME.PARAM=VALUE",
    option="--set",
    read=lambda _, texts: assigned(texts),
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
READY = Flag("Seconds within which servers must be ready.", SERVERS, least=1)
READY_S = 600.0  # default of ``READY``
RAY_ADDRESS = Flag(
    "Address of the head of the Ray cluster for --executor ray.",
    SERVERS,
    "auto, the cluster of this machine",
    "HOST:PORT|auto",
)
