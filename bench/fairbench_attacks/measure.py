"""Simulation of an attack or its honest twin: the attacker's gain and the victims' loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed, UsageError
from fairbench.metrics.censored_latency import Ranked, mean_percentile, samples
from fairbench.metrics.records import PLAIN, Facts
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import cache_hit_rate
from fairbench.metrics.useful_service import group_service
from fairbench.results.intervals import MeanInterval, t_interval
from fairbench.results.run_facts import padding_of
from fairbench.sim.tables_only import simulate_tables
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ClientPlan
from fairbench_attacks.workload import ATTACK, HONEST

PERCENT = 95


class Seen(NamedTuple):
    """The measurements of one run, with service up to the end of arrivals.

    - ``attacker`` is the attacker's useful service, in programs.
    - ``victims`` is the mean, over the victims, of the served fraction of the service due to them.
    - ``finished`` is the number of victims' programs that finished.
    - ``p95_s`` is the mean of the victims' P95 over programs that arrived after the warm-up.
    The value is a lower bound if ``more``, and None if unknown or infinite.
    - ``hits`` is the mean of the victims' cache hit rates.
    """

    attacker: float
    victims: float
    finished: int
    p95_s: float | None
    more: bool
    hits: float | None = None


class Harm(NamedTuple):
    """An attack compared with its honest twin, at one seed.

    Each value is a ratio to the run with the twin. ``gain`` is the ratio of the attacker's useful
    service, ``kept`` of the victims' served fraction, ``finished`` of their finished programs,
    ``hits`` of their cache hit rate. ``p95`` is the ratio of their P95, a lower bound if ``more``.
    None means unknown, or that the twin's value is 0.
    """

    gain: float
    kept: float
    finished: float | None
    p95: float | None
    more: bool
    hits: float | None = None


def replayed(spec: ExperimentSpec, workload: WorkloadSpec, scenario: str) -> ExperimentSpec:
    """Return the experiment with the workload of an attack."""
    count = workload.client_count(scenario)
    return spec.model_copy(
        update={"workload": workload, "scenario": scenario, "clients": count, "weights": None}
    )


def measure(spec: ExperimentSpec, interrupted: Callable[[], bool]) -> Seen:
    """Simulate and measure, as a task of an executor. Raises the errors of ``seen_in``."""
    return seen_in(spec.client_plans(), *simulate_tables(spec, interrupted))


def seen_in(plans: Sequence[ClientPlan], tables: Tables, facts: Facts) -> Seen:
    """Measure a simulated or live run. Raises UsageError if the run is too short."""
    end_s = facts.window.end_s
    attackers = {plan.index: padding_of(plan) for plan in plans if plan.misbehaving}
    victims = [plan.index for plan in plans if not plan.misbehaving]
    requests = tables.requests
    hits = fmean(cache_hit_rate(requests, requests.client == index) for index in victims)
    each = [group_service(tables, {index: PLAIN}, end_s) for index in victims]
    if not all(one.due for one in each):
        raise UsageError(
            f"duration = {end_s:g}: in this time some victims send no request; give a longer "
            "duration"
        )
    each_p95 = Ranked(samples(requests, tables.programs, facts)).percentiles(PERCENT)
    p95 = mean_percentile([each_p95[index] for index in victims])
    return Seen(
        attacker=group_service(tables, attackers, end_s).programs_served,
        victims=fmean(one.fraction for one in each),
        finished=sum(one.finished for one in each),
        p95_s=p95.value_s if isfinite(p95.value_s) else None,
        more=p95.censored,
        hits=hits if isfinite(hits) else None,
    )


def tried(spec: ExperimentSpec, interrupted: Callable[[], bool]) -> Seen | str:
    """Return the result of ``measure``, or the reason why the experiment is impossible."""
    try:
        return measure(spec, interrupted)
    except UsageError as error:
        return str(error)


def harm(attack: Seen, honest: Seen) -> Harm:
    """Compare the attack with the honest twin at the same seed."""
    p95 = attack.p95_s / honest.p95_s if attack.p95_s and honest.p95_s else None
    return Harm(
        gain=_over(attack.attacker, honest.attacker),
        kept=_over(attack.victims, honest.victims),
        finished=attack.finished / honest.finished if honest.finished else None,
        p95=p95 if not honest.more else None,
        more=attack.more,
        hits=attack.hits / honest.hits if attack.hits is not None and honest.hits else None,
    )


def combined(harms: Sequence[Harm]) -> dict[str, Any]:
    """Return means and 95% intervals over seeds as JSON types, by the names of ``Harm``.

    If a seed's P95 ratio is a lower bound, only ``low`` holds for the P95, and ``more`` is true.
    """
    return {
        name: any(values) if name == "more" else _interval(values)
        for name, values in zip(Harm._fields, map(list, zip(*harms, strict=True)), strict=True)
    }


def pair(spec: ExperimentSpec, workload: WorkloadSpec) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Return the honest run and the attack run of an attack workload. Raises UsageError.

    The honest run contains nothing of the attack, and several attacks may share it.
    """
    for scenario in (HONEST, ATTACK):
        if scenario not in workload.scenarios:
            raise UsageError(
                f"workload {workload.name} has no scenario {scenario!r}: choose another scenario"
            )
        if not workload.scenarios[scenario].misbehaving:
            raise UsageError(
                f"workload {workload.name}: scenario {scenario!r} has no heavy client; choose "
                "a scenario that has one"
            )
    alone = {
        **{"name": HONEST, "description": "", "client_owners": None},
        **{"scenarios": {HONEST: workload.scenarios[HONEST]}},
        "clients": workload.client_count(HONEST),
    }
    honest = workload.model_copy(update=alone)
    return replayed(spec, honest, HONEST), replayed(spec, workload, ATTACK)


def _over(part: float, whole: float) -> float:
    if not whole:
        raise RunFailed(
            "the victims got no service in the run with the honest client: give a longer --duration"
        )
    return part / whole


def _interval(values: Sequence[float | None]) -> dict[str, float | None] | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    found: MeanInterval = t_interval(known, least=0.0)
    return found._asdict()
