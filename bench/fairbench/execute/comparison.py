"""Comparisons: stored runs are read, missing runs are made, and all are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairbench.config.sweep import overridden, points
from fairbench.errors import DataError, RunFailed, unknown_name
from fairbench.execute.comparison_plan import Plan, ToRun, called
from fairbench.execute.context import RunContext
from fairbench.execute.live_options import LiveFlags, options_of_points
from fairbench.execute.sweeps import SweepOutcome, run_sweep
from fairbench.results.comparison import runs_below
from fairbench.results.contrast import Side, by_place, sides_of
from fairbench.results.sweep_store import SweepStore


@dataclass(frozen=True, slots=True)
class Compared:
    """The sides in groups, the baseline first, and the outcome of new runs."""

    groups: Sequence[Sequence[Side]]
    outcome: SweepOutcome | None = None


def carry_out(plan: Plan, parent: Path, context: RunContext) -> Compared:
    """Run the missing experiments of a plan in a new directory, and read all sides.

    Raises UsageError if a run is impossible here, RunFailed if no run of an argument came to its
    end, Interrupted once it has come to a halt.
    """
    outcome: SweepOutcome | None = None
    ran: Mapping[str, Side] = {}
    if plan.to_run:
        sweep = plan.sweep()
        specs = points(sweep)
        options = options_of_points(specs, LiveFlags())
        store = SweepStore.create(parent, sweep, specs)
        outcome = run_sweep(store, specs, options, context, "compare")
        ran = _by_key(outcome)
    sides = [_side(one, ran, outcome) for one in plan.members]
    return Compared([called(sides)], outcome)


def go_on(folder: Path, num_runs: int | None, context: RunContext) -> Compared:
    """Run the missing runs of a stored comparison, with ``num_runs`` seeds if given.

    Raises DataError if it holds no sweep, and as ``carry_out`` does.
    A smaller ``num_runs`` keeps the stored number.
    """
    store = SweepStore(folder)
    sweep = store.sweep()
    if num_runs is not None and num_runs > sweep.num_runs:
        sweep = overridden(sweep, {}, num_runs=num_runs)
        store.extend(sweep, points(sweep))
    specs = points(sweep, file=str(store.file))
    options = options_of_points(specs, LiveFlags())
    outcome = run_sweep(store, specs, options, context, "compare")
    outcome_sides = list(_by_key(outcome).values())
    if not outcome_sides:
        outcome.require_whole()
    return Compared(grouped(folder, outcome_sides), outcome)


def read_alone(folder: Path, baseline: str | None = None) -> Compared:
    """Group the runs of one directory by configuration; the first scheduler is the baseline.

    ``baseline`` selects another one. Raises DataError if there is nothing to compare.
    """
    return Compared(grouped(folder, sides_of(runs_below(folder)), baseline))


def grouped(folder: Path, sides: Sequence[Side], baseline: str | None = None) -> list[list[Side]]:
    """Group the sides by configuration, baseline first; drop configurations with a single side."""
    names = list(dict.fromkeys(side.name for side in sides))
    if baseline is not None and baseline not in names:
        raise unknown_name("baseline", baseline, names)
    groups = [
        sorted(group, key=lambda side: side.name != baseline)
        for group in by_place(sides)
        if len(group) > 1 and (baseline is None or baseline in (side.name for side in group))
    ]
    if not groups:
        raise DataError(
            f"{folder}: must hold runs of two or more schedulers in the same configuration"
        )
    return groups


def _by_key(outcome: SweepOutcome) -> Mapping[str, Side]:
    if not outcome.cells:
        return {}
    return {side.key: side for side in sides_of(runs_below(outcome.store.path))}


def _side(one: Side | ToRun, ran: Mapping[str, Side], outcome: SweepOutcome | None) -> Side:
    if isinstance(one, Side):
        return one
    if one.key not in ran and outcome is not None:
        why = outcome.failures[0].error if outcome.failures else "no run is finished"
        raise RunFailed(f"{one.name}: {why}; see {outcome.store.path / 'failed'}")
    return replace(ran[one.key], name=one.name)
