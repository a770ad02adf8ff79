"""The search for attacks. Each attack is compared with a run without the attack, seed by seed.

Attacks are tried in batches, and are drawn at random or chosen by Optuna's TPE sampler. A trial
depends only on its number, the seed and the earlier trials. A search that was interrupted and
continued tries the same attacks as an uninterrupted search.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, isclose
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.errors import UsageError
from fairbench.execute.tasks import RunContext
from fairbench.results.new_directories import run_folder
from fairbench.results.store import write_json
from fairbench.streams import stream
from fairbench.workloads.model import WorkloadSpec
from fairbench_attacks.behaviour import CHOICES, HONEST, Behaviour, behaviour_of
from fairbench_attacks.flags import Objective, value_of
from fairbench_attacks.measure import (
    AttackHarm,
    Seen,
    combined,
    harm,
    measure,
    pair,
    replayed,
    tried,
)
from fairbench_attacks.simulate import (
    gpu_s_per_hour,
    programs_multiple,
    seeded,
    simulate_all,
    task_of,
    timed,
    tokens_per_hour,
)
from fairbench_attacks.store import SearchPlan, SearchStore, Spent, Trial
from fairbench_attacks.workload import ATTACK, Stakes, attack_workload, choices
from fairbench_attacks.workload import HONEST as HONESTLY

Choices = Mapping[str, tuple[Any, ...]]
Scored = Sequence[tuple[Behaviour, float]]
"""Simulated behaviours, each with the value of the objective that the search maximises."""

# ``HONEST_PART`` is the probability that a field of a random behaviour keeps its honest value. Most
# known attacks change few fields of ``Behaviour``.
HONEST_PART = 2 / 3
RANDOM_FIRST = 24  # random trials before the optimiser TPE starts
MAX_DRAWS = 1000  # maximum number of attempts to draw a behaviour that has not been tried
RANDOM, TPE = "random", "tpe"


def random_behaviours(
    choices: Choices, seed: int, first: int, count: int, tried: Sequence[Behaviour]
) -> list[Behaviour]:
    """Draw up to ``count`` new behaviours at random, numbered from ``first`` on."""
    known, found = {HONEST, *tried}, []
    for number in range(first, first + count):
        rng = stream(seed, f"attack/{number}")
        for _ in range(MAX_DRAWS):
            drawn = {
                name: values[0] if rng.random() < HONEST_PART else rng.choice(values)
                for name, values in choices.items()
            }
            behaviour = behaviour_of(drawn).plain()
            if behaviour not in known:
                known.add(behaviour)
                found.append(behaviour)
                break
    return found


def tpe_behaviours(
    choices: Choices, seed: int, first: int, count: int, scored: Scored, tried: Sequence[Behaviour]
) -> list[Behaviour]:
    """Return up to ``count`` new behaviours that Optuna's TPE sampler chooses.

    ``tried`` holds all behaviours tried so far, including behaviours that cannot be simulated.
    Raises UsageError if Optuna is not installed.
    """
    optuna = _optuna()
    several = {name: values for name, values in choices.items() if len(values) > 1}
    kinds = {
        name: optuna.distributions.CategoricalDistribution(values)
        for name, values in several.items()
    }
    draws = stream(seed, f"attack/tpe-{first}")
    sampler = optuna.samplers.TPESampler(
        seed=draws.randrange(2**32), n_startup_trials=0, constant_liar=True
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for behaviour, value in scored:
        params = {name: getattr(behaviour, name) for name in several}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=value))
    known, found = {HONEST, *tried}, []
    for _ in range(count):
        behaviour = behaviour_of(study.ask(kinds).params).plain()
        if behaviour not in known:
            known.add(behaviour)
            found.append(behaviour)
    lacking = count - len(found)
    return found + random_behaviours(choices, seed, first, lacking, [*known])


def check_optimiser(name: str) -> None:
    """Raise UsageError if the package that the optimiser needs is not installed."""
    if name != RANDOM:
        _optuna()


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "--optimiser tpe: needs Optuna: pip install 'fairbench-llm[attack]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


BATCH = 8  # trials in a batch; fixed, so that results do not depend on the number of CPU cores
CONFIRM_FROM = 1000  # first seed of simulations that confirm attacks; a search uses lower seeds


@dataclass(frozen=True, slots=True)
class ConfirmedAttack:
    """A confirmed attack: its trial, and its results relative to honest runs with other seeds."""

    trial: Trial
    harm: dict[str, Any]


class Search:
    """A search for the client behaviour that is the strongest attack.

    The method ``run`` continues after the last trial that is stored in the search's directory.
    """

    def __init__(self, store: SearchStore, context: RunContext) -> None:
        self.store = store
        self.context = context
        self.spec: ExperimentSpec = store.spec()
        self.plan: SearchPlan = store.plan()
        self.stakes = Stakes(self.plan.victims, self.plan.multiple)
        self.choices: Choices = choices(self.spec.workload, CHOICES)
        self.honest: dict[int, Seen] = store.honest()
        self.spent: Spent = store.spent()

    def run(self) -> list[ConfirmedAttack]:
        """Simulate the remaining trials, confirm the worst attacks, and store the results.

        After a signal, raises Interrupted; the trials of all complete batches are stored. If a
        simulation fails, raises the error of the simulation.
        """
        with run_folder(self.store.path, "search"):
            trials = self.store.trials()
            most_s = inf if self.plan.cpu_hours is None else 3600 * self.plan.cpu_hours
            while self.spent.cpu_s < most_s and (batch := self.next_batch(trials)):
                trials += self.try_all(batch, len(trials))
                self.keep(trials)
            worst = worst_of(trials, self.plan.objective, self.plan.keep)
            seeds = [self.spec.seed + CONFIRM_FROM + n for n in range(self.plan.confirm)]
            self._know_honest(seeds)
            workloads = [
                self.workload(one.behaviour, f"attack-{rank}") for rank, one in enumerate(worst, 1)
            ]
            self.store.save_worst(workloads)
            specs = [replayed(self.spec, workload, ATTACK) for workload in workloads]
            seen = self._simulate([seeded(spec, seed) for spec in specs for seed in seeds], measure)
            found = []
            for rank, trial in enumerate(worst):
                mine = seen[rank * len(seeds) : (rank + 1) * len(seeds)]
                harms = list(map(harm, mine, (self.honest[seed] for seed in seeds)))
                found.append(ConfirmedAttack(trial, combined(harms)))
            self.store.save_spent(self.spent)
            write_json(self.store.path / "attack.json", result_json(self, found, len(trials)))
            return found

    def keep(self, trials: Sequence[Trial]) -> None:
        """Store the trials of the search so far, and the processor time of the trials."""
        self.store.save_trials(trials)
        self.store.save_spent(self.spent)

    def workload(self, behaviour: Behaviour, name: str = "attack") -> WorkloadSpec:
        """Return the workload of a behaviour, with a load that fits the attacker's budgets."""
        lasting = {"duration_s": self.spec.duration_s, "warmup_s": self.spec.warmup_s}
        base, scenario = self.spec.workload.model_copy(update=lasting), self.plan.scenario
        make = partial(attack_workload, base, scenario, behaviour, self.stakes, name=name)
        whole = make()
        part = 1 / programs_multiple(*pair(self.spec, whole))
        attack, plan = replayed(self.spec, whole, ATTACK), self.plan
        for budget, asks in ((plan.budget, tokens_per_hour), (plan.gpu_budget, gpu_s_per_hour)):
            if budget is not None and (asked := asks(attack)):
                part = min(part, budget / asked)
        return whole if isclose(part, 1) else make(rate_part=part)

    def next_batch(self, trials: Sequence[Trial]) -> list[Behaviour]:
        """Return the next behaviours to simulate, or an empty list after the last trial."""
        left = BATCH if self.plan.trials is None else self.plan.trials - len(trials)
        if (count := min(BATCH, left)) <= 0:
            return []
        first, seed = len(trials), self.spec.seed
        tried_before = [trial.behaviour for trial in trials]
        if self.plan.optimiser == "random" or first < RANDOM_FIRST:
            return random_behaviours(self.choices, seed, first, count, tried_before)
        scored = [
            (trial.behaviour, value_of(trial.harms, self.plan.objective))
            for trial in trials
            if not trial.error
        ]
        return tpe_behaviours(self.choices, seed, first, count, scored, tried_before)

    def try_all(self, batch: Sequence[Behaviour], first: int) -> list[Trial]:
        """Simulate each behaviour, and return a trial for each, numbered from ``first``."""
        seeds = [self.spec.seed + n for n in range(self.plan.seeds)]
        self._know_honest(seeds)
        self._check_comparable(seeds)
        specs = [self.attack(one) for one in batch]
        possible = [spec for spec in specs if not isinstance(spec, str)]
        seen = iter(self._simulate([seeded(spec, n) for spec in possible for n in seeds]))
        trials = []
        for index, (behaviour, spec) in enumerate(zip(batch, specs, strict=True)):
            mine: list[Any] = [spec] if isinstance(spec, str) else [next(seen) for _ in seeds]
            error = next((one for one in mine if isinstance(one, str)), "")
            harms = () if error else tuple(map(harm, mine, (self.honest[s] for s in seeds)))
            trials.append(Trial(first + index, behaviour, harms, error))
            name = f"trial {first + index + 1}, {behaviour}"
            number = first + index + 1
            self.context.progress.ended(name, number, self.plan.trials or number)
        return trials

    def attack(self, behaviour: Behaviour) -> ExperimentSpec | str:
        """Return the experiment of an attack, or the reason why the attack cannot be simulated."""
        try:
            return replayed(self.spec, self.workload(behaviour), ATTACK)
        except UsageError as error:
            return str(error)

    def _know_honest(self, seeds: Sequence[int]) -> None:
        """Simulate the honest experiment with each given seed that has no stored result."""
        left = [seed for seed in seeds if seed not in self.honest]
        if not left:
            return
        spec = replayed(self.spec, self.workload(HONEST), HONESTLY)
        seen = self._simulate([seeded(spec, seed) for seed in left], measure)
        self.honest |= dict(zip(left, seen, strict=True))
        self.store.save_honest(self.honest)
        self.store.save_spent(self.spent)

    def _check_comparable(self, seeds: Sequence[int]) -> None:
        if self.plan.objective != Objective.LATENCY:
            return
        for seed in seeds:
            if self.honest[seed].p95_s is None or self.honest[seed].more:
                raise UsageError(
                    f"--objective latency: at seed {seed}, in the run with the honest "
                    "client, no P95 can be computed, because too many programs were refused "
                    "or are unfinished; give a smaller --multiple, or --objective harm"
                )

    def _simulate(self, specs: Sequence[ExperimentSpec], how: Any = tried) -> list[Any]:
        again = f"Continue with: fairbench attack --resume {self.store.path}"
        if not self.plan.keep:
            again = f"--rediscover cannot be continued; its trials are in {self.store.path}"
        tasks = [task_of(partial(timed, how), spec) for spec in specs]
        results = simulate_all(tasks, self.context, again)
        cpu_s = self.spent.cpu_s + sum(took_s for _, took_s in results)
        self.spent = Spent(self.spent.simulations + len(results), cpu_s)
        return [result for result, _ in results]


def worst_of(trials: Sequence[Trial], objective: str, most: int) -> list[Trial]:
    """Return up to ``most`` trials with the highest values of the objective.

    If several trials have equal results, only the first of these trials is returned.
    """
    distinct: dict[tuple[AttackHarm, ...], Trial] = {}
    for trial in trials:
        if not trial.error:
            distinct.setdefault(trial.harms, trial)
    worst = sorted(distinct.values(), key=lambda one: -value_of(one.harms, objective))
    return worst[:most]


def result_json(search: Search, found: Sequence[ConfirmedAttack], trials: int) -> Mapping[str, Any]:
    """Return the result of a search as JSON types."""
    spec, plan = search.spec, search.plan
    return {
        "scheduler": spec.scheduler,
        "workload": spec.workload.name,
        "dp": spec.dp,
        "timing_profile": spec.gpu,
        "confirm": plan.confirm,
        "objective": plan.objective,
        "trials": trials,
        "cpu_hours": search.spent.cpu_s / 3600,
        "path": str(search.store.path),
        "worst": [
            {
                "file": f"worst/{rank}.toml",
                "trial": one.trial.number,
                "behaviour": one.trial.behaviour.changed(),
                "about": str(one.trial.behaviour),
                **one.harm,
            }
            for rank, one in enumerate(found, 1)
        ],
    }
