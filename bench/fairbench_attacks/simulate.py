"""Parallel simulations of attacks, and estimates of the load that an attacker sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from statistics import fmean
from time import process_time
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.core import OUTPUT_PRICE
from fairbench.execute.simulations import files_of
from fairbench.execute.tasks import Failure, Reading, RunContext, Task
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.timing import ProfileCosts
from fairbench.schedulers.parts.finishes import RequestWork
from fairbench.workloads.disguises import Disguise
from fairbench.workloads.plan import ClientPlan, expected_programs, program_stream
from fairbench.workloads.programs.base import Job
from fairbench_attacks.measure import Seen, combined, harm, measure

SAMPLE = 32  # number of sampled programs, whose mean estimates the size of a program


def tokens_per_hour(spec: ExperimentSpec) -> float:
    """Return the load of all heavy clients in weighted tokens (input + 2 x output) per hour.

    The load includes the tokens with which attackers pad their prompts.
    """

    def tokens(plan: ClientPlan, job: Job) -> float:
        return job.demand.input_tokens + OUTPUT_PRICE * job.demand.output_tokens

    return _per_hour(spec, tokens)


def gpu_s_per_hour(spec: ExperimentSpec) -> float:
    """Estimate by ``RequestWork`` how many GPU seconds per hour the attacker's requests take.

    The attacker's own padding counts as cached, except for the first use of ``padding_fresh``.
    Prompt tokens other than padding count as uncached, so the estimated GPU time is too high if
    calls of a program share a prompt.
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
    """Return the attacker's expected number of programs, as a multiple of an honest client's."""
    sent = [
        sum(expected_programs(plan) for plan in spec.client_plans() if plan.misbehaving)
        for spec in (attack, honest)
    ]
    return sent[0] / sent[1]


def seeded(spec: ExperimentSpec, seed: int) -> ExperimentSpec:
    """Return a copy of the experiment with the given seed."""
    return spec.model_copy(update={"seed": seed})


def timed(
    how: Callable[[ExperimentSpec, Callable[[], bool]], Any],
    spec: ExperimentSpec,
    interrupted: Callable[[], bool],
) -> tuple[Any, float]:
    """Call ``how``, and return its result and the processor time of the call in seconds."""
    begun_s = process_time()
    return how(spec, interrupted), process_time() - begun_s


def task_of(how: Any, spec: ExperimentSpec) -> Task:
    """Return a task that calls ``how`` with the experiment."""
    return Reading(partial(how, spec), files_of(spec))


def simulate_all(tasks: Sequence[Task], context: RunContext, again: str) -> list[Any]:
    """Run the tasks and return their results in order.

    Raises the error of a task that fails. Raises Interrupted after a signal; the message of
    Interrupted ends in ``again``, which says how to continue.
    """
    results: dict[int, Any] = dict(context.run(tasks))
    if context.interrupted():
        raise context.interrupted.ended(f"interrupted. {again}")
    for result in results.values():
        if isinstance(result, Failure):
            raise result.error
    return [results[index] for index in range(len(tasks))]


def replay(
    pairs: Sequence[tuple[ExperimentSpec, ExperimentSpec]], seeds: int, context: RunContext
) -> list[dict[str, Any]]:
    """Compare each attack experiment with its honest experiment, and average over the seeds.

    ``pairs`` contains two experiments per attack: with an honest client, and with the attacker.
    Equal experiments of several attacks are simulated only once per seed.
    """
    specs: list[ExperimentSpec] = []
    for number in range(seeds):
        for one in (seeded(spec, spec.seed + number) for both in pairs for spec in both):
            if one not in specs:
                specs.append(one)
    seen = simulate_all([task_of(measure, spec) for spec in specs], context, "Nothing is kept.")

    def shown(spec: ExperimentSpec, number: int) -> Seen:
        found: Seen = seen[specs.index(seeded(spec, spec.seed + number))]
        return found

    return [
        combined([harm(shown(attack, n), shown(honest, n)) for n in range(seeds)])
        | {"programs": programs_multiple(honest, attack)}
        for honest, attack in pairs
    ]
