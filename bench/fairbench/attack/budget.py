"""Budgets: the attacker's hourly demand, in tokens or GPU time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from statistics import fmean

from fairbench.config import ExperimentSpec
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.costs import ProfileCosts
from fairbench.schedulers.request_work import RequestWork
from fairbench.workloads.disguise import Disguise
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream
from fairbench.workloads.programs.base import Job

SAMPLE = 32  # programs by which a budget is judged


def tokens_per_hour(spec: ExperimentSpec) -> float:
    """Return input plus twice the output of all heavy clients, including padding."""

    def tokens(plan: ClientPlan, job: Job) -> float:
        return job.demand.input_tokens + 2 * job.demand.output_tokens

    return _per_hour(spec, tokens)


def gpu_s_per_hour(spec: ExperimentSpec) -> float:
    """Return the GPU time that the attack adds per hour, by the engine's costs (``RequestWork``).

    The attacker's own padding counts as cached, fresh padding only from its second use on, and the
    rest of a prompt as computed. The result is an upper bound for programs whose calls share a
    prompt.
    """
    work = RequestWork(ProfileCosts(load_profile(spec.gpu)))

    def gpu_s(plan: ClientPlan, job: Job) -> float:
        disguise, demand = plan.disguise or Disguise(plan.owner), job.demand
        padding, again = disguise.padding_tokens, disguise.keep_alive
        calls = demand.requests // (1 + again) if disguise.fresh else demand.requests - again
        turns = demand.requests - calls
        cached = padding if plan.copied is None else 0
        new_tokens = max(1, round((demand.input_tokens - turns * padding) / calls) - cached)
        spent_s = calls * work.gpu_s(cached, new_tokens, (demand.output_tokens - turns) / calls)
        if disguise.fresh and cached:
            spent_s += calls * work.gpu_s(0, cached, 0)
        return spent_s + turns * work.gpu_s(padding - 1, 1, 1) if turns else spent_s

    return _per_hour(spec, gpu_s)


def _per_hour(spec: ExperimentSpec, size: Callable[[ClientPlan, Job], float]) -> float:
    if spec.duration_s is None:
        return 0.0
    asked = 0.0
    for plan in spec.client_plans():
        jobs = [job for _, job in islice(program_stream(plan, seed=spec.seed), SAMPLE)]
        if plan.misbehaving and jobs:
            mean = fmean(size(plan, job) for job in jobs)
            asked += mean * expected_programs(plan)
    return asked / spec.duration_s * 3600


def programs_multiple(honest: ExperimentSpec, attack: ExperimentSpec) -> float:
    """Return the attacker's programs over its twin's, on average.

    The ratio differs from 1 if the time is not a whole number of an attack's periods.
    """
    sent = [
        sum(expected_programs(plan) for plan in spec.client_plans() if plan.misbehaving)
        for spec in (attack, honest)
    ]
    return sent[0] / sent[1]
