"""The replay of a run of the DLPM authors' judge benchmark.

No value of the simulation is fitted to the replayed runs. The CPU cost of the policy ``lpm_mdrr``
was fitted to two serving runs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import resolve
from fairbench.errors import DataError
from fairbench.hardware.timing import TimingProfile
from fairbench.metrics.fairness import jain
from fairbench.metrics.records import Floats, Ints
from fairbench.metrics.tables import RunResult
from fairbench.sim.run import Simulation
from fairbench.workloads.disguises import Disguise
from fairbench.workloads.plan import ClientPlan
from fairbench.workloads.traffic.arrivals import Arrival
from fairbench_studies.validation.policies import scheduler_of
from fairbench_studies.validation.programs.measured import SYSTEM_TOKENS, ProgramRun
from fairbench_studies.validation.serving.profiles import profile_of, with_host_cost

# The lengths of a request's parts come from the prompts and outputs in the logs of three measured
# runs. An instruction to judge one dimension of an article has 4,219 characters on average (19
# instructions), and a token is assumed to have 5 characters. An answer ends at the word END, before
# its limit of 256 tokens. The lengths of a judgement and of a merged answer follow from the mean
# output tokens per request in programs with 16 judgements and in programs with 2 judgements.
DIMENSION_TOKENS = 844
JUDGEMENT_TOKENS, MERGE_OUTPUT_TOKENS, MAX_NEW_TOKENS = 159, 140, 256
# ``ENGINE_OF_2024`` holds the defaults of SGLang in 2024. The measured server is a fork of SGLang
# that has the defaults of 2024 (docs/appendix/engine.md).
ENGINE_OF_2024 = {
    "engine.num_continuous_decode_steps": 10,
    "engine.in_batch_prefix_caching": False,
    "engine.batch_is_full": False,
}
# The DLPM authors' published command lines set no limit on running requests.
# ``MAX_RUNNING_REQUESTS`` has no effect, because the KV pool is full before the limit is reached.
MAX_RUNNING_REQUESTS = 2_048
SEED = 0  # random seed for the lengths of articles


@dataclass(frozen=True, slots=True)
class EvenArrivals:
    """An ``ArrivalSource`` whose programs arrive at equal intervals from a given start."""

    programs: int
    interval_s: float
    start_s: float

    @property
    def timed(self) -> bool:
        """Whether all seeds have the same arrival times."""
        return True

    def arrivals(self, rng: random.Random) -> Iterator[Arrival]:
        """Yield the arrivals in ascending order of time."""
        for number in range(self.programs):
            yield Arrival(self.start_s + number * self.interval_s)

    def expected_programs(self, before_s: float = inf) -> float:
        """Return the number of programs that arrive before ``before_s`` seconds."""
        return float(sum(at_s < before_s for at_s, _ in self.arrivals(random.Random(0))))

    def last_arrival_s(self, rng: random.Random) -> float:
        """Return the time of the last arrival in seconds, or 0 if there are no arrivals."""
        return max((at_s for at_s, _ in self.arrivals(rng)), default=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The requests and programs of a simulated run. Times are in seconds after the first arrival.

    ``requests_*`` and ``service`` (input + 2 x output tokens) have an entry per finished request.
    ``programs_*`` and ``latencies_s`` have an entry per finished program. Clients are numbers.
    """

    requests_client: Ints
    requests_finish_s: Floats
    service: Floats
    programs_client: Ints
    programs_finish_s: Floats
    latencies_s: Floats

    @property
    def makespan_s(self) -> float:
        """The time in seconds at which the last program ends."""
        return float(self.programs_finish_s.max())

    @property
    def all_active_s(self) -> float:
        """The time in seconds at which the first user has finished all of its programs."""
        ends_s = self.programs_finish_s
        users = np.unique(self.programs_client)
        return min(float(ends_s[self.programs_client == one].max()) for one in users)

    def service_by(self, time_s: float) -> Floats:
        """Return each user's service (tokens) in requests that finished by ``time_s``."""
        done = self.requests_finish_s <= time_s
        users = int(self.requests_client.max()) + 1
        total = np.bincount(self.requests_client[done], self.service[done], minlength=users)
        return total.astype(np.float64)

    @property
    def jain(self) -> float:
        """Jain's fairness index of the users' service up to the time ``all_active_s``."""
        return jain(self.service_by(self.all_active_s))

    def p50_s(self, user: int) -> float:
        """Return the median latency of a user's programs, in seconds."""
        return float(np.median(self.latencies_s[self.programs_client == user]))


def replay(run: ProgramRun, profile: TimingProfile | None = None) -> tuple[Replay, str]:
    """Simulate a measured run; return the replay's results, and the id of the timing profile.

    Raises: DataError: the run's scheduler or timing profile is unknown, or a program cannot be
        served.
    """
    timing = profile or profile_of(run.gpu, run.model, 1, "sglang")
    used = with_host_cost(timing, run.policy)
    spec = _spec(run, used)
    simulation = Simulation(spec, _plans(run, spec), None, profile=used)
    simulation.run()
    return _replayed(run, simulation.result(True, None)), used.profile_id


def _spec(run: ProgramRun, profile: TimingProfile) -> ExperimentSpec:
    scheduler, settings = scheduler_of(run.policy, run.quantum)
    flags = {
        "workload": "judge",
        "scenario": "none",
        "router": scheduler.router,
        "local": scheduler.local,
        "dp": run.dp,
        "gpu": profile.profile_id,
        "model": profile.profile_id.split("/")[1],
        "clients": len(run.branches),
        "num_programs": run.programs,
        "seed": SEED,
    }
    memory = {
        "engine.max_total_tokens": run.pool_tokens,
        "engine.max_prefill_tokens": run.max_prefill_tokens,
        "engine.max_running_requests": MAX_RUNNING_REQUESTS,
    }
    return resolve(flags, {**ENGINE_OF_2024, **memory, **settings})


def _plans(run: ProgramRun, spec: ExperimentSpec) -> tuple[ClientPlan, ...]:
    lengths = {
        "system_tokens": 0,
        "article_tokens": run.prompt_tokens - SYSTEM_TOKENS,
        "dimension_tokens": DIMENSION_TOKENS,
        "judgement_tokens": JUDGEMENT_TOKENS,
        "merge_output_tokens": MERGE_OUTPUT_TOKENS,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    users = list(run.latencies_s)
    return tuple(
        replace(
            plan,
            client=users[index],
            owner=users[index],
            params=replace(plan.params, dimensions=run.branches[index], **lengths),
            disguise=Disguise(users[index], padding_tokens=SYSTEM_TOKENS),
            arrivals=EvenArrivals(
                run.programs, run.intervals_s[index], run.initial_delay_s if index else 0.0
            ),
        )
        for index, plan in enumerate(spec.client_plans())
    )


def _replayed(run: ProgramRun, result: RunResult) -> Replay:
    requests, programs = result.requests, result.programs
    number = {user: index for index, user in enumerate(run.latencies_s)}
    finish_s, ended_s = np.asarray(requests["finish_s"]), np.asarray(programs["finish_s"])
    if np.isnan(ended_s).any():
        raise DataError("a program did not finish; a request may be larger than the KV pool")
    done = ~np.isnan(finish_s)
    service = np.asarray(requests["input_tokens"]) + 2.0 * np.asarray(requests["output_tokens"])
    return Replay(
        requests_client=np.array([number[str(one)] for one in requests["client"]])[done],
        requests_finish_s=finish_s[done],
        service=service[done],
        programs_client=np.array([number[str(one)] for one in programs["client"]]),
        programs_finish_s=ended_s,
        latencies_s=ended_s - np.asarray(programs["arrival_s"]),
    )
