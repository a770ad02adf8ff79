"""What a workload file comes to on a cluster: clients, rates, load, and what would surprise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.execute.expected.dry_run import Call
from fairbench.execute.expected.groups import Group, calls_of_groups, groups_of
from fairbench.execute.expected.load import Machine, gpu_s, running_limit
from fairbench.hardware.catalogue import load_profile
from fairbench.metrics.fairness import max_min
from fairbench.sim.engine.contracts import contract_of
from fairbench.workloads.plan import ClientPlan, expected_programs
from fairbench.workloads.traffic.closed import ClosedArrivals

PEAK_PARTS = 60  # of the run, of which the busiest is its peak
FEW = 20  # programs, below which percentiles of a client say little
IDLE, FLOODED = 0.7, 2.0  # of what the cluster can do


def check_facts(spec: ExperimentSpec) -> dict[str, Any]:
    """The facts of an experiment's workload, by JSON types. Nothing is run.

    ``load`` is the GPU time asked for over what there is, with a cache that never forgets and
    without one. Rates are per second and on average over the seeds, of the whole group; ``peak`` is
    the busiest 60th of the run over the mean.
    """
    plans = spec.client_plans()
    groups = groups_of(plans)
    length_s = spec.duration_s or spec.workload.duration_s
    samples = calls_of_groups(groups, spec.seed)
    machine = machine_of(spec)
    rows = [_row(*one, machine, spec.dp) for one in zip(groups, samples, strict=True)]
    if spec.duration_s is not None:
        for row in rows:
            row["programs_per_s"] = row["programs"] / length_s
            for key in ("load", "load_uncached"):
                row[key] = row[key] and row[key] / length_s
    facts: dict[str, Any] = {
        "workload": spec.workload.name,
        "scenario": spec.scenario,
        "dp": spec.dp,
        "gpu": spec.gpu,
        "duration_s": spec.duration_s,
        "clients": len(plans),
        "misbehaving": sum(plan.misbehaving for plan in plans),
        "programs": sum(row["programs"] for row in rows),
        "requests": sum(row["programs"] * row["requests_per_program"] for row in rows),
        "peak": _peak(plans, spec.duration_s),
        "load": _total(rows, "load") if spec.duration_s else None,
        "load_uncached": _total(rows, "load_uncached") if spec.duration_s else None,
        "groups": rows,
    }
    facts["surprises"] = list(_surprises(facts, plans, groups, samples, machine, spec.weights))
    return facts


def machine_of(spec: ExperimentSpec) -> Machine:
    """Return a replica of an experiment: its times, its KV pool, its most running requests."""
    profile = load_profile(spec.gpu)
    engine = contract_of(spec.engine, spec.settings, profile)
    return Machine(profile, engine.pool_tokens, running_limit(spec.settings))


def _row(group: Group, sample: list[list[Call]], machine: Machine, dp: int) -> dict[str, Any]:
    calls = [call for program in sample for call in program]
    sizes = [expected_programs(plan) for plan in group.plans]
    inputs = sum(call.input_tokens for call in calls)

    def load(*, cached: bool) -> float:
        return sum(sizes) * gpu_s(calls, machine, cached=cached) / len(sample) / dp

    return {
        "clients": group.clients,
        "count": len(group.plans),
        "program": group.kind,
        "misbehaving": group.plans[0].misbehaving,
        "closed": isinstance(group.plans[0].arrivals, ClosedArrivals),
        "programs": sum(sizes),
        "smallest_programs": min(sizes),
        "largest_programs": max(sizes),
        "programs_per_s": None,
        "requests_per_program": len(calls) / len(sample),
        "input_tokens": inputs / max(1, len(calls)),
        "output_tokens": sum(call.output_tokens for call in calls) / max(1, len(calls)),
        "endless_hit_rate": sum(call.cached_tokens for call in calls) / max(1, inputs),
        "load": load(cached=True),
        "load_uncached": load(cached=False),
    }


def _total(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows))


def _peak(plans: Sequence[ClientPlan], duration_s: float | None) -> float | None:
    """The busiest part of the run over the mean; None without an end or programs."""
    if duration_s is None:
        return None
    edges = np.linspace(0.0, duration_s, PEAK_PARTS + 1)
    begun = np.zeros(len(edges))
    for plan in plans:
        begun += [expected_programs(plan, before_s=float(edge)) for edge in edges]
    each = np.diff(begun)
    return float(each.max() / each.mean()) if each.mean() > 0 else None


def _surprises(
    facts: dict[str, Any],
    plans: Sequence[ClientPlan],
    groups: Sequence[Group],
    samples: Sequence[list[list[Call]]],
    machine: Machine,
    weights: dict[str, float] | None,
) -> Iterator[str]:
    """What would surprise whoever runs it, in a sentence each."""
    load, worst, peak = facts["load"], facts["load_uncached"], facts["peak"]
    if not any(map(expected_programs, plans)):
        yield "nobody sends anything: no client is there while programs arrive"
        return
    if load is not None and worst < IDLE:
        yield "hardly anyone ever waits: every scheduler will look the same"
    if load is not None and load > FLOODED:
        yield "far more than the cluster can do: queues grow as long as the run lasts"
    if load and peak and load < 1 < load * peak:
        yield f"below what the cluster can do on average, but {peak:.1f} times that at its peak"
    sizes = [expected_programs(plan) for plan in plans]
    few = sum(size < FEW for size in sizes)
    if few:
        absent = sum(size < 1 for size in sizes)
        more = f", {absent:,} of them less than one" if absent else ""
        yield (
            f"{few:,} of {len(plans):,} clients send fewer than {FEW} programs on average{more}: "
            "their own percentiles will say little"
        )
    for group, sample in zip(groups, samples, strict=True):
        calls = [call for program in sample for call in program]
        large = sum(call.input_tokens + call.max_new_tokens > machine.pool_tokens for call in calls)
        if large:
            yield (
                f"{group.clients}: {large / len(calls):.0%} of the requests are refused, since "
                f"they do not fit a KV pool of {machine.pool_tokens:,} tokens"
            )
    if any(row["closed"] for row in facts["groups"]):
        yield "users in closed loops ask for what the cluster lets them: their rates are a guess"
    if load and load > 1:
        yield from _short(facts, groups, weights or {})


def _short(
    facts: dict[str, Any], groups: Sequence[Group], weights: dict[str, float]
) -> Iterator[str]:
    """The well-behaved who ask for more than a fair share of GPU time."""
    demands, own, good = [], [], []
    for row, group in zip(facts["groups"], groups, strict=True):
        for plan in group.plans:
            part = expected_programs(plan) / row["programs"] if row["programs"] else 0.0
            demands.append(row["load"] * part)
            own.append(weights.get(plan.client, 1.0))
            good.append(not plan.misbehaving)
    given = max_min(1.0, demands, own)
    short = int(np.sum((given < 0.999 * np.asarray(demands)) & np.asarray(good)))
    if short:
        yield (
            f"{short:,} of {sum(good):,} well-behaved clients ask for more than a fair share: they "
            "wait under a fair scheduler too"
        )
