"""Comparisons of experiments: read stored runs, make missing runs, and group experiments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.flags import COMPARE
from fairbench.config.parse_flags import check_names
from fairbench.config.resolve import experiment
from fairbench.config.spec import experiment_tables
from fairbench.config.sweep import Sweep, grid_of, make_sweep, points, with_axes
from fairbench.errors import DataError, RunFailed, UsageError, choose_from, unknown_name
from fairbench.execute.live_runs import NO_FLAGS, check_live_points
from fairbench.execute.repeats import SweepOutcome, run_sweep
from fairbench.execute.tasks import ProgressReceiver, RunContext, run_context
from fairbench.metrics.catalogue import key_of as key_of_metric
from fairbench.results.comparison import (
    SchedulerResults,
    by_place,
    checked_runs,
    sides_below,
    sides_of,
)
from fairbench.results.experiments import OF_THE_REPORT, Experiment, grid_labels, key_of
from fairbench.results.run_facts import check_metrics_of
from fairbench.results.store import EXPERIMENT, SweepStore
from fairbench.results.summary import values_of
from fairbench.schedulers.registry import PAIRS, other_kind
from fairbench.workloads.model import MAX_NAME

METRIC = "--metric"
NUM_RUNS = 5


@dataclass(frozen=True, slots=True)
class ToRun:
    """An experiment that ``compare`` must run, with its first seed."""

    name: str
    spec: ExperimentSpec

    @property
    def key(self) -> str:
        """The ``experiment_key`` of the experiment."""
        return experiment_key(experiment_tables(self.spec))


def experiment_key(experiment: Experiment) -> str:
    """Return a key of an experiment that does not depend on the seed and the report options."""
    return key_of({k: v for k, v in experiment.items() if k not in OF_THE_REPORT | {"seed"}})


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """The experiments that ``compare`` will compare, and the seeds of new runs."""

    members: tuple[SchedulerResults | ToRun, ...]
    seeds: tuple[int, ...]

    @property
    def to_run(self) -> list[ToRun]:
        """The experiments for which no runs are stored."""
        return [one for one in self.members if isinstance(one, ToRun)]

    @property
    def stored_keys(self) -> set[str]:
        stored = [one for one in self.members if not isinstance(one, ToRun)]
        return {key for one in stored for key in values_of(one.first.summary)}

    def sweep(self) -> Sweep:
        """Return the missing runs of a comparison as a sweep, which users can resume and report."""
        names = "-".join(one.spec.scheduler for one in self.to_run)
        count = len(self.seeds)
        together = self.seeds == tuple(range(self.seeds[0], self.seeds[0] + count))
        seeds = self.seeds[:1] if together else self.seeds
        return make_sweep(
            {
                "name": re.sub(r"[^A-Za-z0-9._-]", "_", f"compare-{names}")[:MAX_NAME],
                "num_runs": count if together else 1,
                "grid": [grid_of(one.spec) | {"seed": list(seeds)} for one in self.to_run],
            }
        )


def plan_comparison(
    arguments: Sequence[str],
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    num_runs: int | None = None,
) -> ComparisonPlan:
    """Read stored experiments, and resolve the experiments that must be run.

    An argument is a directory with runs of one experiment, an experiment FILE.toml, or the name of
    a scheduler. Schedulers given by name run with the configuration and seeds of the first
    directory among the arguments, if any. ``flags`` and ``settings`` apply only to new runs. Raises
    UsageError if an argument is wrong.
    """
    check_names(flags, COMPARE)
    stored = {one: _stored(Path(one)) for one in arguments if is_stored(one)}
    if stored and len(stored) == len(arguments) and (flags or settings or num_runs):
        raise _nothing_new([*flags, *settings, *(["num_runs"] if num_runs else [])])
    model = next(iter(stored.values()), None)
    members: list[SchedulerResults | ToRun] = []
    for argument in arguments or [""]:
        if argument in stored:
            members.append(stored[argument])
        else:
            members += _to_run(argument, flags, settings, model)
    new = [one for one in members if isinstance(one, ToRun)]
    for index, one in enumerate(new):
        if one.key in (earlier.key for earlier in new[:index]):
            raise UsageError(f"{one.name}: this experiment is given twice; leave one out")
    seeds: Iterable[int] = ()
    if new and model is not None and num_runs is None and "seed" not in flags:
        seeds = model.by_seed
    elif new:
        first = new[0].spec.seed if model is None or "seed" in flags else min(model.by_seed)
        seeds = range(first, first + (num_runs or NUM_RUNS))
    return ComparisonPlan(tuple(members), tuple(seeds))


def codes_of(flags: Mapping[str, Any]) -> list[str]:
    """Return the values of ``engine_code`` in the experiments to compare."""
    codes = flags.get("engine_code") or []
    return [codes] if isinstance(codes, str) else list(codes)


def _to_run(
    argument: str,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    model: SchedulerResults | None,
) -> list[ToRun]:
    """Return the experiments that an argument names, one for each value of ``engine_code``."""
    if not (codes := codes_of(flags)):
        return [ToRun(argument, _spec(argument, flags, settings, model))]
    return [
        ToRun(
            f"{argument} {code}".strip(),
            _spec(argument, {**flags, "engine_code": code}, settings, model),
        )
        for code in codes
    ]


def check_usage(
    arguments: Sequence[str],
    resume: Path | None,
    baseline: str | None,
    *,
    given: Sequence[str],
    codes: int = 0,
) -> None:
    """Raise UsageError for flags that exclude each other.

    ``given`` has the flags that the user gave. ``codes`` is the number of values given for
    ``engine_code``.
    """
    if resume is not None:
        if arguments or given or baseline:
            raise UsageError(
                f"resume {resume}: the stored settings are used; give no other settings"
            )
    elif codes > 1 and not any(map(is_stored, arguments)):
        if baseline:
            raise UsageError(
                f"baseline {baseline}: leave it out; the first engine_code is the baseline"
            )
    elif not arguments:
        raise UsageError("nothing to compare: give two schedulers, files or directories")
    elif len(arguments) > 1:
        if baseline:
            raise UsageError(
                f"baseline {baseline}: needs a single directory; leave baseline out, because the "
                "first of several arguments is the baseline"
            )
    elif arguments[0] and not is_stored(arguments[0]):
        raise UsageError(
            f"{arguments[0]}: a comparison needs two arguments; give another scheduler, file "
            "or directory after it"
        )
    elif given:
        raise _nothing_new(given)


def _nothing_new(given: Iterable[str]) -> UsageError:
    return UsageError(
        f"{', '.join(given)}: cannot be given with directories of stored runs, because nothing "
        "new is run; leave it out"
    )


def is_stored(argument: str) -> bool:
    """Return whether an argument is a directory and not a scheduler's name."""
    return argument not in PAIRS and Path(argument).is_dir()


def _stored(path: Path) -> SchedulerResults:
    sides = sides_below(path)
    if len(sides) > 1:
        raise UsageError(
            f"{path}: holds {len(sides)} experiments; give this directory as the only "
            "argument, or give the directory of a single experiment"
        )
    return replace(sides[0], scheduler=str(path))


def _spec(
    argument: str,
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    model: SchedulerResults | None,
) -> ExperimentSpec:
    # If no scheduler is named, the default scheduler runs with each ``engine_code``.
    if not argument:
        return experiment(flags, settings)
    if argument.endswith(".toml"):
        return experiment(flags, settings, Path(argument))
    if argument not in PAIRS and "+" not in argument:
        if kind := other_kind(argument):
            raise UsageError(f"{argument!r}: {kind}")
        raise UsageError(
            f"{argument!r}: must be an experiment FILE.toml, the directory of stored runs, or a "
            f"scheduler: {choose_from(argument, sorted(PAIRS))}"
        )
    file = None if model is None else model.first.run.path / EXPERIMENT
    return experiment({**flags, "scheduler": argument}, settings, file)


def called(sides: Sequence[SchedulerResults]) -> list[SchedulerResults]:
    """Name experiments by scheduler; if schedulers repeat, name experiments by file."""
    named = grid_labels([side.first.experiment for side in sides])
    schedulers = [label.scheduler for label in named]
    if len(set(schedulers)) < len(schedulers):
        paths = [side.scheduler for side in sides]
        names = [Path(path).name for path in paths]
        schedulers = names if len(set(names)) == len(names) else paths
    return [
        replace(side, scheduler=name, place=label.place)
        for side, name, label in zip(sides, schedulers, named, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class ComparedExperiments:
    """Compared experiments in groups; the first experiment of each group is the baseline."""

    groups: Sequence[Sequence[SchedulerResults]]
    outcome: SweepOutcome | None = None


def compare_experiments(
    arguments: Sequence[str],
    flags: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    num_runs: int | None,
    baseline: str | None,
    resume: Path | None,
    parent: Path,
    progress: ProgressReceiver | None,
    metrics: Sequence[str] = (),
) -> ComparedExperiments:
    """Run the experiments of a comparison that are not stored, and return all experiments.

    ``arguments`` are arguments of ``plan_comparison``, or a directory with several schedulers,
    whose first is the default ``baseline``. ``resume`` is the directory of a stored comparison to
    continue. New runs are saved in a new directory in ``parent``. The names in ``metrics`` are
    checked before any run starts. Raises UsageError for experiments that cannot be compared, and
    the errors that ``carry_out`` raises.
    """
    codes = len(codes_of(flags))
    alone = resume is None and len(arguments) == 1 and codes < 2
    runs = ["num_runs"] if alone and num_runs else []
    check_usage(arguments, resume, baseline, given=[*flags, *settings, *runs], codes=codes)
    if alone:
        folder = Path(arguments[0])
        return ComparedExperiments(grouped(folder, sides_below(folder), baseline))
    with run_context(progress) as context:
        if resume is not None:
            return go_on(resume, num_runs, context, metrics)
        plan = plan_comparison(arguments, flags, settings, num_runs)
        missing = [one for one in metrics if key_of_metric(one) not in plan.stored_keys]
        check_metrics_of(missing, [one.spec for one in plan.to_run], METRIC)
        return carry_out(plan, parent, context)


def carry_out(plan: ComparisonPlan, parent: Path, context: RunContext) -> ComparedExperiments:
    """Run the missing experiments of a plan in a new directory, and read all experiments.

    Raises UsageError if a run is impossible on this machine, RunFailed if an argument has no
    finished run, and Interrupted after a signal.
    """
    outcome, ran = None, dict[str, SchedulerResults]()
    if plan.to_run:
        sweep = plan.sweep()
        specs = points(sweep)
        check_live_points(specs, NO_FLAGS)
        store = SweepStore.create(parent, sweep, specs)
        outcome = run_sweep(store, specs, NO_FLAGS, context, "compare")
        ran = {experiment_key(side.first.experiment): side for side in _sides(outcome)}
        for one in plan.to_run:
            if one.key not in ran:
                why = outcome.failures[0].error if outcome.failures else "no run is finished"
                failed = store.path / "failed"
                raise RunFailed(f"{one.name} has no results: {why}; see {failed}")
    sides = [
        replace(ran[one.key], scheduler=one.name) if isinstance(one, ToRun) else one
        for one in plan.members
    ]
    return ComparedExperiments([called(sides)], outcome)


def go_on(
    folder: Path, num_runs: int | None, context: RunContext, metrics: Sequence[str] = ()
) -> ComparedExperiments:
    """Complete a stored comparison with its missing runs; a larger ``num_runs`` adds seeds.

    Raises DataError if the directory contains no sweep, and the errors that ``carry_out`` raises.
    """
    store = SweepStore(folder)
    sweep = store.sweep()
    if num_runs is not None and num_runs > sweep.num_runs:
        sweep = with_axes(sweep, {}, num_runs=num_runs)
        store.extend(sweep, points(sweep))
    specs = points(sweep, file=str(store.file))
    check_metrics_of(metrics, specs, METRIC)
    check_live_points(specs, NO_FLAGS)
    outcome = run_sweep(store, specs, NO_FLAGS, context, "compare")
    if not (sides := _sides(outcome)):
        outcome.require_whole()
    return ComparedExperiments(grouped(folder, sides), outcome)


def grouped(
    folder: Path, sides: Sequence[SchedulerResults], baseline: str | None = None
) -> list[list[SchedulerResults]]:
    """Group schedulers by configuration, each group with the baseline first.

    A configuration in which only one scheduler has runs is left out.
    """
    names = list(dict.fromkeys(side.scheduler for side in sides))
    if baseline is not None and baseline not in names:
        raise unknown_name("baseline", baseline, names)
    groups = [
        sorted(group, key=lambda side: side.scheduler != baseline)
        for group in by_place(sides).values()
        if len(group) > 1 and (baseline is None or baseline in (side.scheduler for side in group))
    ]
    if groups:
        return groups
    raise DataError(f"{folder}: must hold runs of two or more schedulers in one configuration")


def _sides(outcome: SweepOutcome) -> list[SchedulerResults]:
    return sides_of(checked_runs(run for cell in outcome.cells for run in cell.runs))
