"""The busiest minute of a workload: its demand of GPU time, and its time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairbench.execute.expected.groups import Asked, Group
from fairbench.execute.expected.load import Machine, gpu_s
from fairbench.workloads.plan import expected_programs

PEAK_S, PEAK_PARTS = 60.0, 10  # a minute, or a tenth of a run that is shorter than ten


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
