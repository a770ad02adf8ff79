"""The flags of one experiment, by the commands that take them.

A flag is one entry here: ``run`` takes all of ``RunFlags``, ``compare`` all of ``CompareFlags``,
``plan`` all of ``PlanFlags``, as options; the functions of these names take them as keywords.
A command for which a flag has another help or default takes that entry ``but`` for what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

from fairbench.config.flags.flag import (
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
    flags_of,
    goodput_flag,
    parse_weights,
    split_commas,
)
from fairbench.config.flags.trace import TraceFlags
from fairbench.hardware.engines import DEFAULT_ENGINE, ENGINES


class EveryFlags(TypedDict, total=False):
    """Flags of ``run``, ``compare``, ``plan`` and ``sweep``."""

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
    """Flags of ``run``, ``compare`` and ``sweep``."""

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


class SeedFlags(TypedDict, total=False):
    """The flag of ``compare``, ``plan`` and ``sweep``, which run over several seeds."""

    seed: Annotated[int | None, Flag("The first seed.", COMMON, 0)]


class SingleFlags(TraceFlags, EveryFlags, total=False):
    """Flags of ``run``, ``compare`` and ``plan`` that ``sweep`` lacks or takes as lists."""

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
    """Flags of ``run`` and ``compare``, which simulate one cluster or start one."""

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
            "Programs/s of each well-behaved client over the whole cluster; `inf` is all at once.",
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
    """Flags of ``run`` and ``plan``."""

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


class CompareFlags(SetupFlags, SingleFlags, ServedFlags, SeedFlags, total=False):
    """Flags of ``fairbench compare``; its ``--help`` describes them."""


COMPARE = flags_of(CompareFlags)


class PlanFlags(SingleFlags, ArrivalFlags, SeedFlags, total=False):
    """Flags of ``fairbench plan`` that describe its load, explained in its ``--help``."""

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
