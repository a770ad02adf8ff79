"""Budgets: what an attacker asks for in an hour, in tokens or GPU time, served or not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from statistics import fmean

from fairbench.config import ExperimentSpec
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.costs import ProfileCosts
from fairbench.schedulers.request_work import RequestWork
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream
from fairbench.workloads.programs import Job

SAMPLE = 32  # programs by which a budget is judged


def tokens_per_hour(spec: ExperimentSpec) -> float:
    """Input and twice the output, padding included, of all that misbehave."""

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
        calls, disguise = job.demand.requests, plan.disguise
        padding = disguise.padding_tokens if disguise and disguise.prefix_of is None else 0
        new_tokens = max(1, round(job.demand.input_tokens / calls) - padding)
        gpu_s = calls * work.gpu_s(padding, new_tokens, job.demand.output_tokens / calls)
        if disguise and disguise.fresh and padding:
            gpu_s += calls / (1 + disguise.keep_alive) * work.gpu_s(0, padding, 0)
        return gpu_s

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
    """Return the attacker's programs over its twin's, on average, while programs arrive.

    The ratio differs from 1 if the time is not a whole number of an attack's periods.
    """
    sent = [
        sum(expected_programs(plan) for plan in spec.client_plans() if plan.misbehaving)
        for spec in (attack, honest)
    ]
    return sent[0] / sent[1]
