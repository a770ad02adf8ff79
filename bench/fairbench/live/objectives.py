"""Objectives: how a run's router is told the latency targets of each client.

The driver names one in a header (as llm-d has it), and the router has the targets of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fairbench.config import ExperimentSpec


def objectives(spec: ExperimentSpec) -> Mapping[str, str]:
    """Return client -> name of its objective, for clients with latency targets."""
    return {client: name for client, name, _ in _named(spec)}


def objective_flags(spec: ExperimentSpec, time_scale: float) -> list[str]:
    """Return ``serve`` flags for the latency objectives, for workers ``time_scale`` times as fast.

    Objectives given only as a multiple of the unloaded latency are left out, because the router
    does not know that latency.
    """
    flags = []
    for _, name, times_s in _named(spec):
        for latency, time_s in times_s.items():
            flags += ["--goodput", f"{name}.{latency}:{time_s / time_scale * 1000:.12g}ms"]
    return flags


def _named(spec: ExperimentSpec) -> Iterator[tuple[str, str, Mapping[str, float]]]:
    for number, plan in enumerate(spec.client_plans()):
        given = plan.targets.given()
        times_s = {latency: one.amount for latency, one in given if not one.of_alone}
        if times_s:
            yield plan.client, f"client-{number}", times_s
