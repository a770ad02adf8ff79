"""The approximate GPU time of a program, from the timing profile for full batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fairbench.core import PS_PER_S
from fairbench.execute.expected.dry_run import Call
from fairbench.hardware.timing import TimingProfile

BATCHED_TOKENS = 2048  # of short prompts that are computed together
MOST_TOGETHER = 8
USUAL_LIMIT = 64  # requests that run at a time, where nothing says


class Machine(NamedTuple):
    """A replica: its times, its KV pool in tokens, and how many requests run at a time."""

    profile: TimingProfile
    pool_tokens: int
    limit: int


def running_limit(settings: Mapping[str, Any]) -> int:
    """Return the highest number of concurrent requests that the engine's settings allow."""
    for key in ("engine.max_running_requests", "vllm.max_num_seqs"):
        if isinstance(limit := settings.get(key), int):
            return limit
    return USUAL_LIMIT


def gpu_s(calls: Sequence[Call], machine: Machine, *, cached: bool) -> float:
    """Return the seconds of one replica for some requests, with an endless cache or none.

    Args:
        calls: Requests, with their numbers of tokens.
        machine: Replica that serves the requests.
        cached: Whether the ``cached_tokens`` of each request need no computing.
    """
    return sum(_prefill_s(call, machine, cached) + _decode_s(call, machine) for call in calls)


def _prefill_s(call: Call, machine: Machine, cached: bool) -> float:
    hit = min(call.cached_tokens, call.input_tokens - 1) if cached else 0
    new = call.input_tokens - hit
    together = max(1, min(MOST_TOGETHER, BATCHED_TOKENS // new))
    return machine.profile.prefill_ps([(hit, new)] * together) / together / PS_PER_S


def _decode_s(call: Call, machine: Machine) -> float:
    """Return the request's share of the decode steps of a full batch of similar requests."""
    context = call.input_tokens + call.output_tokens // 2
    held = max(1, call.input_tokens + call.output_tokens)  # engines reserve little beyond
    batch = max(1, min(machine.limit, machine.pool_tokens // held))
    step_s = machine.profile.decode_ps(batch, batch * context) / PS_PER_S
    return call.output_tokens * step_s / batch
