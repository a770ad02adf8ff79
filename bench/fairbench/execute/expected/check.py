"""The effect of a workload file on a cluster: clients, rates, load, and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.execute.expected.load import (
    Asked,
    Call,
    Group,
    Machine,
    busiest_minute,
    calls_of_groups,
    gpu_s,
    groups_of,
)
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engines import DEFAULT_ENGINE
from fairbench.metrics.max_min import max_min
from fairbench.sim.engine.contract import CONTRACTS
from fairbench.workloads.plan import ClientPlan, expected_programs
from fairbench.workloads.traffic.closed import ClosedArrivals

FEW = 20  # number of programs below which a client's percentiles are unreliable
IDLE, FLOODED = 0.7, 2.0  # fractions of the cluster's capacity


def check_facts(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the facts of an experiment's workload as JSON types. Nothing is run.

    ``load`` is the requested GPU time over the available time, with an unlimited cache and without
    a cache. ``peak_load`` is the load of the busiest minute, without a cache, and ``peak`` its
    ratio to the mean. Rates are per second, averaged over the seeds, for the whole group.
    """
    plans = spec.client_plans()
    groups = groups_of(plans)
    length_s = spec.duration_s or spec.workload.duration_s
    samples = calls_of_groups(groups, spec.seed)
    machine = machine_of(spec)
    rows = [_row(*one, machine, spec.dp) for one in zip(groups, samples, strict=True)]
    timed = spec.duration_s is not None
    for row in rows if timed else ():
        row["programs_per_s"] = row["programs"] / length_s
        row |= {key: row[key] / length_s for key in ("load", "load_uncached")}
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
        **dict.fromkeys(("peak", "peak_load", "peak_s")),
        "load": float(sum(row["load"] for row in rows)) if timed else None,
        "load_uncached": float(sum(row["load_uncached"] for row in rows)) if timed else None,
        "groups": rows,
    }
    if spec.duration_s is not None:
        facts |= busiest_minute(groups, samples, machine, spec.duration_s, spec.dp)
    facts["surprises"] = list(_surprises(facts, plans, groups, samples, machine, spec.weights))
    return facts


def machine_of(spec: ExperimentSpec) -> Machine:
    """Return a replica: its times, its KV pool, and its limit of running requests."""
    profile = load_profile(spec.gpu)
    engine = CONTRACTS[spec.engine or DEFAULT_ENGINE](spec.settings, profile)
    return Machine(profile, engine.pool_tokens, engine.most_running)


def _row(group: Group, sample: list[Asked], machine: Machine, dp: int) -> dict[str, Any]:
    sizes = [expected_programs(plan) for plan in group.plans]
    weight = sum(one.weight for one in sample)

    def mean(of: Callable[[list[Call]], float]) -> float:
        return sum(one.weight * of(one.calls) for one in sample) / weight

    def load(*, cached: bool) -> float:
        return sum(sizes) * mean(lambda calls: gpu_s(calls, machine, cached=cached)) / dp

    requests = mean(len)
    inputs = mean(lambda calls: sum(call.input_tokens for call in calls))
    hits = mean(lambda calls: sum(call.cached_tokens for call in calls))
    outputs = mean(lambda calls: sum(call.output_tokens for call in calls))
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
        "requests_per_program": requests,
        "input_tokens": inputs / requests if requests else 0.0,
        "output_tokens": outputs / requests if requests else 0.0,
        "endless_hit_rate": hits / inputs if inputs else 0.0,
        "load": load(cached=True),
        "load_uncached": load(cached=False),
    }


def _surprises(
    facts: dict[str, Any],
    plans: Sequence[ClientPlan],
    groups: Sequence[Group],
    samples: Sequence[list[Asked]],
    machine: Machine,
    weights: dict[str, float] | None,
) -> Iterator[str]:
    """Yield a sentence for each fact that may surprise the user."""
    load, worst, peak = facts["load"], facts["load_uncached"], facts["peak_load"]
    sizes = [expected_programs(plan) for plan in plans]
    if not any(sizes):
        yield "no client sends a request: no client is present while programs arrive"
        return
    if load is not None and max(worst, peak) < IDLE:
        yield "hardly any request waits, so all schedulers will give similar results"
    if load is not None and load > FLOODED:
        yield (
            "the load is far above the capacity of the cluster, so queues grow until the end "
            "of the run"
        )
    if load and load < 1 < peak:
        yield (
            f"the load is below the capacity of the cluster on average, but {peak:.0%} of "
            f"it in the busiest minute, around {facts['peak_s']:.0f} s; the scheduler "
            "decides which clients wait then"
        )
    few = sum(size < FEW for size in sizes)
    if few:
        absent = sum(size < 1 for size in sizes)
        more = f", and {absent:,} of them fewer than one" if absent else ""
        yield (
            f"{few:,} of {len(plans):,} clients send fewer than {FEW} programs on "
            f"average{more}, so their percentiles are not reliable"
        )
    for group, sample in zip(groups, samples, strict=True):
        weighed = [
            (one.weight, call.input_tokens + call.max_new_tokens)
            for one in sample
            for call in one.calls
        ]
        total = sum(weight for weight, _ in weighed)
        if large := sum(weight for weight, tokens in weighed if tokens > machine.pool_tokens):
            yield (
                f"{group.clients}: {large / total:.0%} of the requests will be refused, "
                f"because they do not fit a KV pool of {machine.pool_tokens:,} tokens"
            )
    if any(row["closed"] for row in facts["groups"]):
        yield (
            "the rates of users in closed loops are estimates, because they depend on the "
            "speed of the cluster"
        )
    if load and load > 1:
        yield from _short(facts, groups, weights or {})


def _short(
    facts: dict[str, Any], groups: Sequence[Group], weights: dict[str, float]
) -> Iterator[str]:
    """Yield sentences on well-behaved clients that need more than their fair share."""
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
            f"{short:,} of {sum(good):,} well-behaved clients need more than a fair "
            "share, so they wait under a fair scheduler, too"
        )
