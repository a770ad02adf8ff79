"""The approximate GPU time that a workload demands, in all and in its busiest minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fairbench.core import PS_PER_S
from fairbench.execute.expected.programs import Asked, Call, Group
from fairbench.hardware.timing import TimingProfile
from fairbench.workloads.plan import expected_programs

BATCHED_TOKENS = 2048  # of short prompts that are computed together
MOST_TOGETHER = 8
PEAK_S, PEAK_PARTS = 60.0, 10  # a minute, or a tenth of a run that is shorter than ten


class Machine(NamedTuple):
    """A replica: its times, its KV pool in tokens, and how many requests run at a time."""

    profile: TimingProfile
    pool_tokens: int
    limit: int


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


def busiest_minute(
    groups: Sequence[Group],
    samples: Sequence[list[Asked]],
    machine: Machine,
    duration_s: float,
    dp: int,
) -> dict[str, float | None]:
    """Return the load of the busiest minute, its ratio to the mean, and when it is.

    Every client's programs count with the GPU time of its own, without a cache. ``peak`` is None if
    nobody sends anything.

    Args:
        groups: Groups of clients with the same traffic.
        samples: Sampled programs of each group, in the order of ``groups``.
        machine: Replica that serves the requests.
        duration_s: Length of the run, in seconds.
        dp: Number of replicas.
    """
    parts = max(PEAK_PARTS, round(duration_s / PEAK_S))
    edges = np.linspace(0.0, duration_s, parts + 1)
    asked_s = np.zeros(parts)
    for group, sample in zip(groups, samples, strict=True):
        costs = _costs(sample, machine)
        usual = sum(costs.values()) / len(costs)
        for plan in group.plans:
            begun = [expected_programs(plan, before_s=float(edge)) for edge in edges]
            asked_s += costs.get(plan.client, usual) * np.diff(begun)
    load = asked_s / np.diff(edges) / dp
    at = int(np.argmax(load))
    return {
        "peak": float(load[at] / load.mean()) if load.mean() > 0 else None,
        "peak_load": float(load[at]),
        "peak_s": float(edges[at] + edges[at + 1]) / 2,
    }


def _costs(sample: Sequence[Asked], machine: Machine) -> dict[str, float]:
    """Return the mean GPU time of a program of each sampled client, in seconds."""
    found: dict[str, list[float]] = {}
    for one in sample:
        found.setdefault(one.client, []).append(gpu_s(one.calls, machine, cached=False))
    return {client: sum(times) / len(times) for client, times in found.items()}
