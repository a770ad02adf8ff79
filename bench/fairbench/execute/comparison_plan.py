"""The subjects of a comparison: stored experiments, and experiments to run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.flags.experiment import COMPARE
from fairbench.config.flags.flag import check_names
from fairbench.config.resolve import experiment
from fairbench.config.settings import flat_settings
from fairbench.config.spec import experiment_tables
from fairbench.config.sweep import Sweep, make_sweep
from fairbench.errors import UsageError
from fairbench.results.comparison import runs_below
from fairbench.results.contrast import Side, experiment_key, sides_of
from fairbench.results.grid import labels
from fairbench.results.store import EXPERIMENT
from fairbench.schedulers.registry import PAIRS, other_kind
from fairbench.workloads.shape import MAX_NAME

NUM_RUNS = 5  # seeds of what is run, unless it is said or stored how many


@dataclass(frozen=True, slots=True)
class ToRun:
    """An argument to run: its experiment with the first of the seeds."""

    name: str
    spec: ExperimentSpec

    @property
    def key(self) -> str:
        """The common key of the runs, as in ``Side.key``."""
        return experiment_key(experiment_tables(self.spec))


@dataclass(frozen=True, slots=True)
class Plan:
    """The arguments in order, and the seeds of experiments to run."""

    members: tuple[Side | ToRun, ...]
    seeds: tuple[int, ...]

    @property
    def to_run(self) -> list[ToRun]:
        """The members that have yet to run."""
        return [one for one in self.members if isinstance(one, ToRun)]

    def sweep(self) -> Sweep:
        """Return the planned runs as a sweep, which can be resumed and reported as usual."""
        names = "-".join(one.spec.scheduler for one in self.to_run)
        first, count = self.seeds[0], len(self.seeds)
        together = self.seeds == tuple(range(first, first + count))
        seeds = {"seed": [first] if together else list(self.seeds)}
        return make_sweep(
            {
                "name": re.sub(r"[^A-Za-z0-9._-]", "_", f"compare-{names}")[:MAX_NAME],
                "num_runs": count if together else 1,
                "grid": [grid_of(one.spec) | seeds for one in self.to_run],
            }
        )


def plan_comparison(
    arguments: Sequence[str],
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    num_runs: int | None = None,
) -> Plan:
    """Read stored experiments, and resolve those to run.

    An argument is the directory of one experiment, over any seeds; an experiment FILE.toml; or a
    scheduler, which runs at the place and seeds of the first directory, if there is one. ``flags``
    and ``settings`` are of what is run. Raises UsageError naming what is wrong.
    """
    check_names(flags, COMPARE)
    stored = {one: _stored(Path(one)) for one in arguments if is_stored(one)}
    if len(stored) == len(arguments) and (flags or settings or num_runs):
        given = ", ".join([*flags, *settings, *(["num_runs"] if num_runs else [])])
        raise UsageError(
            f"{given}: cannot be given with directories of stored runs, because nothing new "
            "is run; leave it out"
        )
    model = next(iter(stored.values()), None)
    members: list[Side | ToRun] = []
    for argument in arguments:
        side = stored.get(argument)
        members.append(side or ToRun(argument, _spec(argument, flags, settings, model)))
    keys = [one.key for one in members if isinstance(one, ToRun)]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise UsageError(
                f"{arguments[number]}: this experiment is given twice; give two different ones"
            )
    return Plan(tuple(members), _seeds(members, flags, model, num_runs))


def check_usage(
    arguments: Sequence[str],
    resume: str | PathLike[str] | None,
    baseline: str | None,
    *,
    given: Sequence[str],
) -> None:
    """Raise UsageError for flags that cannot be combined."""
    if resume is not None:
        if arguments or given or baseline:
            raise UsageError(
                f"resume {resume}: continues the comparison with its stored settings; no "
                "other setting can be given with it"
            )
    elif not arguments:
        raise UsageError("nothing to compare: give two schedulers, files or directories")
    elif len(arguments) > 1:
        if baseline:
            raise UsageError(
                f"baseline {baseline}: needs a single directory; of several arguments, the "
                "first is the baseline"
            )
    elif arguments[0] and not is_stored(arguments[0]):
        raise UsageError(
            f"{arguments[0]}: a comparison needs two arguments; give another scheduler, file "
            "or directory after it"
        )
    elif given:
        raise UsageError(
            f"{', '.join(given)}: cannot be given with directories of stored runs, because "
            "nothing new is run; leave it out"
        )


def is_stored(argument: str) -> bool:
    """Return whether an argument is a directory; the name of a scheduler takes precedence."""
    return argument not in PAIRS and Path(argument).is_dir()


def _stored(path: Path) -> Side:
    sides = sides_of(runs_below(path))
    if len(sides) > 1:
        raise UsageError(
            f"{path}: holds {len(sides)} experiments; give it as the only argument, or "
            "give the directory of one of them"
        )
    return replace(sides[0], name=str(path))


def _spec(
    argument: str, flags: Mapping[str, Any], settings: Mapping[str, Any], model: Side | None
) -> ExperimentSpec:
    if argument.endswith(".toml"):
        return experiment(flags, settings, Path(argument))
    if argument not in PAIRS and "+" not in argument:
        if kind := other_kind(argument):
            raise UsageError(f"{argument!r}: {kind}")
        near = get_close_matches(argument, PAIRS, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"{argument!r}: must be a scheduler ({', '.join(sorted(PAIRS))}), an experiment "
            f"FILE.toml, or the directory of stored runs.{hint}"
        )
    file = None if model is None else model.first.run.path / EXPERIMENT
    return experiment({**flags, "scheduler": argument}, settings, file)


def _seeds(
    members: Sequence[Side | ToRun],
    flags: Mapping[str, Any],
    model: Side | None,
    num_runs: int | None,
) -> tuple[int, ...]:
    specs = [one.spec for one in members if isinstance(one, ToRun)]
    if not specs:
        return ()
    if model is not None and num_runs is None and "seed" not in flags:
        return tuple(model.runs)
    first = specs[0].seed if model is None or "seed" in flags else min(model.runs)
    return tuple(range(first, first + (num_runs or NUM_RUNS)))


def grid_of(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the experiment as a grid of one point; a list counts as a single value."""
    tables = dict(experiment_tables(spec))
    flat = flat_settings(tables.pop("settings", {})) | tables
    return {key: [value] for key, value in flat.items() if key != "tag"}


def called(sides: Sequence[Side]) -> list[Side]:
    """Name the sides by their differences: their schedulers, or their present names."""
    named = labels([side.first.experiment for side in sides])
    schedulers = [label.scheduler for label in named]
    if len(set(schedulers)) < len(schedulers):
        names = [Path(side.name).name for side in sides]
        unlike = len(set(names)) == len(names)
        schedulers = names if unlike else [side.name for side in sides]
    return [
        replace(side, name=name, place=label.place)
        for side, name, label in zip(sides, schedulers, named, strict=True)
    ]
