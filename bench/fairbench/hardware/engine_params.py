"""Parameters of the simulated engine, by SGLang's names, their limits, and rules of releases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le
from pydantic import PlainValidator

from fairbench.hardware.timing import TimingProfile

Release: TypeAlias = Literal["0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]

Splits: TypeAlias = Literal["prefilled", "finished", "never"]


@dataclass(frozen=True)
class SGLangRules:
    """The rules of one release; the defaults are those of 0.5.23.

    ``drops_finished``: a finished request leaves the batch before the next pass, not with the next
    decode step. ``counts_chunk_once``: the prompt that a pass continues takes one slot of
    ``max_running_requests``, not two. ``tries_within_budget``: when that prompt's chunk uses up a
    budget, no other request is tried. ``touches_waiting``: passes that match nothing refresh the
    prefixes of the queue's head. ``splits``: when a prompt and the outputs recomputed with it after
    a retraction become two nodes of the tree, if at all: when prefilled, or when finished.
    """

    drops_finished: bool = True
    counts_chunk_once: bool = True
    tries_within_budget: bool = True
    touches_waiting: bool = True
    splits: Splits = "prefilled"


NEWEST = SGLangRules()
_0_5_22 = replace(NEWEST, drops_finished=False, counts_chunk_once=False, tries_within_budget=False)
_0_5_20 = replace(_0_5_22, touches_waiting=False, splits="finished")
_0_5_17 = replace(_0_5_20, splits="never")

RULES: dict[Release, SGLangRules] = {
    "0.5.17": _0_5_17,
    "0.5.18": _0_5_17,
    "0.5.19": _0_5_17,
    "0.5.20": _0_5_20,
    "0.5.21": _0_5_20,
    "0.5.22": _0_5_22,
    "0.5.23": NEWEST,
}

PrefixMatchTime: TypeAlias = Annotated[float, Ge(0), Le(10**6)] | None
"""Microseconds of CPU for each waiting request that a pass matches, as a parameter of an engine."""


def _checked(value: Any) -> str | int | None:
    tokens = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value in ("auto", "none", None) or tokens:
        found: str | int | None = value
        return found
    raise ValueError("must be auto, none or a number of tokens above 0")


LoadCapSetting: TypeAlias = Annotated[str | int | None, PlainValidator(_checked)]


@dataclass(frozen=True)
class EngineParams:
    """Settings of every simulated worker (``--set engine.NAME=VALUE``). 0 is the default.

    ``chunked_prefill_size``, ``mem_fraction_static``, ``max_total_tokens`` default to what SGLang
    0.5.23 chooses for the GPU and model (for the A10G the fraction is 0.88, as the papers had).
    ``max_running_requests``: 0.5.23 clamps its estimate to 2,048-4,096, so that memory is the
    limit. ``full_reservation`` keeps the new-token ratio at 1.0 (as ``ignore_eos`` does): admission
    reserves every output token, nothing is ever retracted. ``step_by_step`` advances one decode
    step at a time instead of in closed form; the records are the same.
    ``num_continuous_decode_steps``: an admission pass is made after this number of steps, by
    default after each (10 in [DLPM] §5.1). ``in_batch_prefix_caching``, by default on, puts
    requests last whose prefix a request ahead is about to compute, as SGLang does since December
    2024 (PR #2442). ``batch_is_full``, by default on, marks a batch full in a pass that finds no
    room; no pass is made until a request leaves. SGLang of summer 2024 had no such mark.
    ``swap_space``: GiB of the host's memory, per GPU, for requests that a scheduler preempts with
    ``swap``; by default 4, as in vLLM. ``load_cap``: the limit on running requests, in tokens of
    context as docs/appendix/engine.md counts them, or ``auto``; by default ``none``.
    ``prefix_match_us``: CPU time in us that a scheduling pass takes for each waiting request when a
    cache-aware scheduler has the queue matched against the cache; the GPU waits. By default 0;
    measured in docs/appendix/speed.md. ``release``: the release of SGLang whose rules are followed,
    by default 0.5.23; docs/reference/releases.md lists the differences.
    """

    chunked_prefill_size: Annotated[int, Ge(0)] = 0
    max_prefill_tokens: Annotated[int, Gt(0)] = 16_384
    max_running_requests: Annotated[int, Gt(0)] = 2_048
    schedule_conservativeness: Annotated[float, Gt(0)] = 1.0
    mem_fraction_static: Annotated[float, Ge(0), Le(1)] = 0.0
    max_total_tokens: Annotated[int, Ge(0), Le(10**9)] = 0
    full_reservation: bool = False
    step_by_step: bool = False
    num_continuous_decode_steps: Annotated[int, Ge(1), Le(10_000)] | None = None
    in_batch_prefix_caching: bool | None = None
    batch_is_full: bool | None = None
    swap_space: Annotated[float, Ge(0), Le(10**6)] | None = None
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    release: Release | None = None


@dataclass(frozen=True)
class EngineLimits:
    """The resolved start parameters of an engine, in tokens except for the number of requests.

    ``host_tokens`` is the host memory for swapped KV cache. ``load_cap`` and ``prefix_match_us``
    are the settings as given; ``rules`` are those of the release.
    """

    pool_tokens: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    max_running_requests: int
    schedule_conservativeness: float = 1.0
    full_reservation: bool = False
    step_by_step: bool = False
    num_continuous_decode_steps: int = 1
    in_batch_prefix_caching: bool = True
    marks_full_batch: bool = True
    host_tokens: int = 0
    load_cap: LoadCapSetting = None
    prefix_match_us: PrefixMatchTime = None
    rules: SGLangRules = NEWEST


def swap_gib(given: float | None) -> float:
    """Return the host memory for preempted requests in GiB: as given, or vLLM's default."""
    return 4.0 if given is None else given


def mem_fraction(params: EngineParams, profile: TimingProfile) -> float:
    """Return the fraction of GPU memory for weights and KV, as given or by default."""
    return params.mem_fraction_static or profile.pool.mem_fraction_static


def engine_limits(params: EngineParams, profile: TimingProfile) -> EngineLimits:
    """Return engine parameters with the defaults of the GPU and model."""
    pool = profile.pool
    fraction = mem_fraction(params, profile)
    return EngineLimits(
        pool_tokens=params.max_total_tokens or pool.tokens(fraction),
        chunked_prefill_size=params.chunked_prefill_size or pool.chunked_prefill_size,
        max_prefill_tokens=params.max_prefill_tokens,
        max_running_requests=params.max_running_requests,
        schedule_conservativeness=params.schedule_conservativeness,
        full_reservation=params.full_reservation,
        step_by_step=params.step_by_step,
        num_continuous_decode_steps=params.num_continuous_decode_steps or 1,
        in_batch_prefix_caching=params.in_batch_prefix_caching is not False,
        marks_full_batch=params.batch_is_full is not False,
        host_tokens=pool.host_tokens(swap_gib(params.swap_space)),
        load_cap=params.load_cap,
        prefix_match_us=params.prefix_match_us,
        rules=NEWEST if params.release is None else RULES[params.release],
    )
