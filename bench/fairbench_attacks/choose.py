"""The choice of the next attacks: at random, or near good trials (Optuna's TPE).

A choice depends on the seed, its number and the trials before it. Interrupting the search does
not change it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.errors import UsageError
from fairbench.streams import stream
from fairbench_attacks.behaviour import HONEST, Behaviour, behaviour_of

Choices = Mapping[str, tuple[Any, ...]]
Scored = Sequence[tuple[Behaviour, float]]
"""Trials that could be run, and how good each was: more is better."""

# probability that a choice stays honest, because simple attacks combine few choices
HONEST_PART = 2 / 3
RANDOM_FIRST = 24  # trials before the optimiser has enough data
MAX_DRAWS = 1000  # attempts to draw a behaviour that was not tried yet
RANDOM, TPE = "random", "tpe"


def random_behaviours(
    choices: Choices, seed: int, first: int, count: int, tried: Sequence[Behaviour]
) -> list[Behaviour]:
    """Draw ``count`` untried behaviours, numbered from ``first``; fewer if few are left."""
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
    """Return up to ``count`` behaviours from Optuna's TPE, none of them in ``tried``.

    ``tried`` includes the impossible behaviours. Raises UsageError if Optuna is not installed.
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
    """Raise UsageError if the optimiser is not installed."""
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
