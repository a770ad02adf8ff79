"""Simulations of a search or of known attacks, in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from time import process_time
from typing import Any

from fairbench.attack.budget import programs_multiple
from fairbench.attack.measure import Seen, combined, harm, measure
from fairbench.config import ExperimentSpec
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure, Reading, Task
from fairbench.execute.simulations import files_of


def seeded(spec: ExperimentSpec, seed: int) -> ExperimentSpec:
    """Return the experiment with this seed."""
    return spec.model_copy(update={"seed": seed})


def timed(
    how: Callable[[ExperimentSpec, Callable[[], bool]], Any],
    spec: ExperimentSpec,
    interrupted: Callable[[], bool],
) -> tuple[Any, float]:
    """Return a simulation's result and its processor time in seconds.

    Args:
        how: Function that simulates the experiment, given the experiment and ``interrupted``.
        spec: Experiment to simulate.
        interrupted: Function that returns whether the simulation is to stop.
    """
    begun_s = process_time()
    return how(spec, interrupted), process_time() - begun_s


def task_of(how: Any, spec: ExperimentSpec) -> Task:
    """Return an executor task that applies ``how`` to the experiment."""
    return Reading(partial(how, spec), files_of(spec))


def simulate_all(tasks: Sequence[Task], context: RunContext, again: str) -> list[Any]:
    """Return the tasks' results in order. Raises Interrupted, or the error that a task raised.

    Args:
        tasks: Simulations, as tasks of an executor.
        context: Interruption flag, progress receiver and executor of the tasks.
        again: Sentence for the end of the message after an interruption.
    """
    results: dict[int, Any] = {}
    with (
        context.progress.tasks([1.0] * len(tasks)) as done,
        closing(context.executor.run(tasks, context.interrupted)) as running,
    ):
        for index, result in running:
            results[index] = result
            done(index)
    if context.interrupted():
        raise context.interrupted.ended(f"interrupted. {again}")
    for result in results.values():
        if isinstance(result, Failure):
            raise result.error
    return [results[index] for index in range(len(tasks))]


def replay(
    pairs: Sequence[tuple[ExperimentSpec, ExperimentSpec]], seeds: int, context: RunContext
) -> list[dict[str, Any]]:
    """Return each attack's harm relative to its honest twin (``measure.pair``), over the seeds.

    A twin shared by several attacks is simulated once.

    Args:
        pairs: Honest twin and attack, as experiments, of each attack.
        seeds: Number of seeds, counted up from the seed of each experiment.
        context: Interruption flag, progress receiver and executor of the tasks.
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
