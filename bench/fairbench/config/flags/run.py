"""The flags of ``run`` beside those of other commands: its scheduler, machine and servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fairbench.config.flags.experiment import ArrivalFlags, ServedFlags, SetupFlags, SingleFlags
from fairbench.config.flags.flag import (
    CLUSTER,
    COMMON,
    LOAD,
    OUTPUT,
    SCHEDULER,
    SERVERS,
    WORKLOAD,
    Flag,
    flags_of,
)
from fairbench.config.flags.texts import split_words


class RunFlags(SetupFlags, SingleFlags, ArrivalFlags, ServedFlags, total=False):
    """Flags of ``fairbench run``: what they mean is in its ``--help``."""

    scheduler: Annotated[
        str | None,
        Flag("Pair of router and local scheduler, see `list schedulers`.", COMMON, default="d2lpm"),
    ]
    seed: Annotated[int | None, Flag("Seed of everything random.", COMMON, default="0")]
    dataset_path: Annotated[
        str | None, Flag("Real input: a local file, or hf:NAME from the hub.", WORKLOAD)
    ]
    tokenizer: Annotated[
        str | None, Flag("tokenizer.json that counts the tokens of real input.", WORKLOAD)
    ]
    max_concurrency: Annotated[
        int | None,
        Flag("Most requests under way at real servers.", LOAD, "backend.", default="no limit"),
    ]
    router: Annotated[str | None, Flag("Another router than the pair's.", SCHEDULER)]
    local: Annotated[str | None, Flag("Another local scheduler than the pair's.", SCHEDULER)]
    routers: Annotated[
        int | None,
        Flag(
            "Number of routers that share the fleet, in the form of `--set routers.form`.",
            SCHEDULER,
            default="1",
        ),
    ]
    mem_fraction_static: Annotated[
        float | None,
        Flag("Share of GPU memory for weights and KV (as in SGLang).", CLUSTER, "engine."),
    ]
    max_total_tokens: Annotated[
        int | None,
        Flag("KV pool in tokens, instead of the formula.", CLUSTER, "engine.", unit="tokens"),
    ]
    max_running_requests: Annotated[
        int | None, Flag("Most requests in one batch.", CLUSTER, "engine.")
    ]
    chunked_prefill_size: Annotated[
        int | None,
        Flag("Most prompt tokens in one prefill iteration.", CLUSTER, "engine.", unit="tokens"),
    ]
    max_prefill_tokens: Annotated[
        int | None,
        Flag(
            "Most uncached prompt tokens admitted in one pass.", CLUSTER, "engine.", unit="tokens"
        ),
    ]
    schedule_conservativeness: Annotated[
        float | None,
        Flag(
            "Fraction of max_new_tokens that admission reserves (as in SGLang).", CLUSTER, "engine."
        ),
    ]
    timing_error: Annotated[
        float | None,
        Flag(
            "Perturb the timing profile by up to so many percent, one draw a run.",
            CLUSTER,
            key="timing.error_pct",
            unit="%",
        ),
    ]
    eviction: Annotated[
        str | None,
        Flag(
            "Eviction policy of simulated replicas, see `list evictions`; records who holds KV "
            "memory.",
            CLUSTER,
            default="lru, without records",
            metavar="POLICY",
        ),
    ]
    memory_records: Annotated[
        bool | None,
        Flag("Record who holds KV memory, and who evicts whom, without another policy.", CLUSTER),
    ]
    base_url: Annotated[
        str | None,
        Flag(
            "Benchmark the OpenAI-compatible server at this URL as it is; starts none.",
            SERVERS,
            "backend.",
        ),
    ]
    api: Annotated[
        str | None,
        Flag(
            "API to send to.",
            SERVERS,
            "backend.",
            default="generate; completions with --base-url",
            metavar="generate|completions|chat",
        ),
    ]
    output_lengths: Annotated[
        str | None,
        Flag(
            "Ask --base-url for min_tokens, or let it end answers early.",
            SERVERS,
            "backend.",
            default="exact",
            metavar="exact|free",
        ),
    ]
    extra_body: Annotated[
        str | None,
        Flag(
            "More fields for every request to --base-url, as a JSON object; null removes one.",
            SERVERS,
            "backend.",
            metavar="JSON",
        ),
    ]
    max_tokens_field: Annotated[
        str | None,
        Flag(
            "Name of the field for the output limit at --base-url.",
            SERVERS,
            "backend.",
            default="max_tokens",
            metavar="max_tokens|max_completion_tokens",
        ),
    ]
    rate_limited: Annotated[
        str | None,
        Flag(
            "Response to a 429 of --base-url: fail, or wait for Retry-After and try again.",
            SERVERS,
            "backend.",
            default="fail",
            metavar="fail|wait",
        ),
    ]
    tp: Annotated[int | None, Flag("GPUs of each server.", SERVERS, "backend.", default="1")]
    share_gpus: Annotated[
        bool,
        Flag(
            "Let SGLang servers share GPUs if there are too few.", SERVERS, key="backend.share_gpus"
        ),
    ]
    schedule_policy: Annotated[
        str | None,
        Flag(
            "The servers' own scheduling (vLLM: fcfs), not a local scheduler of fairbench.",
            SERVERS,
            "backend.",
            metavar="fcfs|lpm",
        ),
    ]
    load_format: Annotated[
        str | None,
        Flag(
            "Load format as in SGLang; `dummy` needs no weights, only a config.json.",
            SERVERS,
            "backend.",
        ),
    ]
    server_args: Annotated[
        Sequence[str] | None,
        Flag(
            "Any other flag of each server; may be repeated.",
            SERVERS,
            "backend.",
            option="--server-arg",
            metavar="'--FLAG VALUE'",
            read=split_words,
            repeats=True,
        ),
    ]
    router_command: Annotated[
        Sequence[str] | None,
        Flag(
            "Start somebody else's router before emulated servers, and measure it. "
            "docs/guide/live.md names the placeholders.",
            SERVERS,
            "backend.",
            metavar="'CMD {port} {worker_urls} ...'",
            read=split_words,
        ),
    ]
    window: Annotated[
        str | None,
        Flag(
            "Measure while programs arrive, or the whole run.",
            OUTPUT,
            default="arrivals",
            metavar="arrivals|whole",
        ),
    ]
    tag: Annotated[str | None, Flag("A word of yours, kept with the result.", OUTPUT)]


RUN = flags_of(RunFlags)
