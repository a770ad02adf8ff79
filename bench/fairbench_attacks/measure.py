"""The attacker's gain and the victims' loss, compared with a run without the attack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed, UsageError
from fairbench.metrics.censored_latency import Ranked, mean_percentile, samples
from fairbench.metrics.goodput import group_service
from fairbench.metrics.records import PLAIN, Facts
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import cache_hit_rate
from fairbench.results.run_facts import padding_of
from fairbench.results.significance import MeanInterval, t_interval
from fairbench.sim.run import simulate_tables
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ClientPlan
from fairbench_attacks.workload import ATTACK, HONEST

PERCENT = 95  # percentile of the victims' latency to measure


class Seen(NamedTuple):
    """The measurements of one simulated run, with or without an attack.

    Service is summed from the start of the run to the end of arrivals.

    - ``attacker`` is the attacker's useful service (without padding tokens), divided by the mean
      useful demand of the attacker's programs.
    - ``victims`` is the fraction of its due service that a victim received, as a mean over victims.
    - ``finished`` is the number of the victims' finished programs.
    - ``p95_s`` is the mean of the victims' P95 latencies in seconds, for programs that arrived
      after the warm-up. ``p95_s`` is None if the P95 latency is unknown or infinite. If ``more`` is
      True, ``p95_s`` is only a lower bound.
    - ``hits`` is the mean cache hit rate of the victims.
    """

    attacker: float
    victims: float
    finished: int
    p95_s: float | None
    more: bool
    hits: float | None = None


class AttackHarm(NamedTuple):
    """The results of an attack for one seed, relative to a run in which the attacker is honest.

    Each field is a value of the attack run divided by the value of the honest run.

    - ``gain``: the attacker's service without padding, relative to the honest run.
    - ``kept``: the victims' fraction of due service, relative to the honest run.
    - ``finished``: the number of the victims' finished programs, relative to the honest run.
    - ``p95``: the victims' P95 latency, relative to the honest run; ``more`` marks a lower bound.
    - ``hits``: the victims' cache hit rate, relative to the honest run.

    A field is None if a run's value is unknown, or if the honest run's value is 0.
    """

    gain: float
    kept: float
    finished: float | None
    p95: float | None
    more: bool
    hits: float | None = None


def replayed(spec: ExperimentSpec, workload: WorkloadSpec, scenario: str) -> ExperimentSpec:
    """Return the experiment with an attack's workload instead of its own."""
    count = workload.client_count(scenario)
    return spec.model_copy(
        update={"workload": workload, "scenario": scenario, "clients": count, "weights": None}
    )


def measure(spec: ExperimentSpec, interrupted: Callable[[], bool]) -> Seen:
    """Simulate an experiment and measure the run. Raises the errors of ``seen_in``."""
    return seen_in(spec.client_plans(), *simulate_tables(spec, interrupted))


def seen_in(plans: Sequence[ClientPlan], tables: Tables, facts: Facts) -> Seen:
    """Return the measurements of a run, simulated or on real servers.

    Raises UsageError if a victim sends no request.
    """
    end_s = facts.window.end_s
    attackers = {plan.index: padding_of(plan) for plan in plans if plan.misbehaving}
    victims = [plan.index for plan in plans if not plan.misbehaving]
    requests = tables.requests
    hits = fmean(cache_hit_rate(requests, requests.client == index) for index in victims)
    each = [group_service(tables, {index: PLAIN}, end_s) for index in victims]
    if not all(one.due for one in each):
        raise UsageError(
            f"duration = {end_s:g}: some victims send no request within this many seconds; "
            "give a longer duration"
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
    """Return the result of ``measure``, or the reason why the experiment cannot be simulated."""
    try:
        return measure(spec, interrupted)
    except UsageError as error:
        return str(error)


def harm(attack: Seen, honest: Seen) -> AttackHarm:
    """Compare an attack run with the honest run of the same seed."""
    p95 = attack.p95_s / honest.p95_s if attack.p95_s and honest.p95_s else None
    return AttackHarm(
        gain=_ratio(attack.attacker, honest.attacker),
        kept=_ratio(attack.victims, honest.victims),
        finished=attack.finished / honest.finished if honest.finished else None,
        p95=p95 if not honest.more else None,
        more=attack.more,
        hits=attack.hits / honest.hits if attack.hits is not None and honest.hits else None,
    )


def combined(harms: Sequence[AttackHarm]) -> dict[str, Any]:
    """Return the mean and 95% confidence interval over seeds of each field of ``AttackHarm``.

    ``more`` is True if the ``p95`` of any seed is a lower bound; the interval of ``p95`` then has
    no valid upper end.
    """
    return {
        name: any(values) if name == "more" else _mean_interval(values)
        for name, values in zip(
            AttackHarm._fields, map(list, zip(*harms, strict=True)), strict=True
        )
    }


def pair(spec: ExperimentSpec, workload: WorkloadSpec) -> tuple[ExperimentSpec, ExperimentSpec]:
    """Return the experiments of the honest run and of the attack run. Raises UsageError.

    Several attacks can share one honest run, because the honest run does not depend on the attack.
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


def _ratio(part: float, whole: float) -> float:
    if not whole:
        raise RunFailed(
            "the victims got no service in the run with the honest client: give a longer --duration"
        )
    return part / whole


def _mean_interval(values: Sequence[float | None]) -> dict[str, float | None] | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    found: MeanInterval = t_interval(known, least=0.0)
    return found._asdict()
