"""Points of a check: experiments that have both current runs and baseline runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbench.config.resolve import read_spec
from fairbench.config.serving import SCHEDULING
from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.results import experiments
from fairbench.results.comparison import ComparedRun, runs_below
from fairbench.results.store import EXPERIMENT, MANIFEST, SWEEP_FILE, Summary, SweepStore

MAX_SHOWN = 4  # maximum number of differing keys that a message lists


@dataclass(frozen=True, slots=True)
class GatePoint:
    """An experiment with one simulated run, or with measured runs that differ only in the seed.

    ``experiment`` contains the seeds of all runs, and the tables of the experiment file without the
    tag. Two points are compared if their ``experiment`` is equal.
    """

    runs: tuple[ComparedRun, ...]
    experiment: experiments.Experiment

    @property
    def simulated(self) -> bool:
        """Whether all runs are simulated, and therefore deterministic."""
        return _is_simulated(self.runs[0])


@dataclass(frozen=True, slots=True)
class PairedPoint:
    """An experiment with the summaries of its baseline runs and of its current runs.

    ``experiment`` is the name without the seed; simulated points with equal ``experiment`` differ
    only in the seed. ``causes`` names default settings that changed after the baseline was stored.
    """

    name: str
    simulated: bool
    before: tuple[Summary, ...]
    after: tuple[Summary, ...]
    experiment: str = ""
    causes: tuple[str, ...] = ()


def read_pairs(
    baseline: Path, current: Path, allowed: Collection[str] = (), left_out: Collection[str] = ()
) -> list[PairedPoint]:
    """Return the pairs of experiments of two directories, in the order of the baseline.

    A directory with a manifest is one run; otherwise, all runs in its subdirectories are read. Runs
    of a sweep include the metrics that the sweep's comparison adds. Two experiments form a pair if
    they differ only in changed defaults and in the keys in ``allowed``, such as ``dp`` or
    ``vtc.charge``. ``left_out`` names baseline directories to ignore.

    If runs failed in a directory, runs of the other directory may lack a counterpart.

    Raises UsageError for an unknown key. Raises DataError for a directory without runs, an
    unreadable or incomplete run, and a run without a counterpart in the other directory. The
    message about a run without a counterpart names the most similar run and the differences.
    """
    before, after = _gate_points(baseline, left_out), _gate_points(current)
    points = [*before.values(), *after.values()]
    known = {key for point in points for key in experiments.used_values(point.experiment)}
    for key in allowed:
        if key not in known:
            raise unknown_name("--allow", key, known)
    # ``--allow scheduler`` also allows different routers and different local schedulers.
    parts = SCHEDULING if "scheduler" in allowed else ()
    causes = _pair_over_changes(before, after, {*allowed, *parts})
    if not failed_runs(current):
        _refuse_unlike(before, after, current)
    if not failed_runs(baseline):
        _refuse_unlike(after, before, baseline)
    names = experiments.grid_labels([point.runs[0].experiment for point in before.values()])
    return [
        PairedPoint(
            _point_name(names[index], point),
            point.simulated,
            tuple(run.summary for run in point.runs),
            tuple(run.summary for run in after[key].runs),
            f"{names[index].place}, {names[index].scheduler}",
            causes.get(key) or _kept_defaults(after[key]),
        )
        for index, (key, point) in enumerate(before.items())
        if key in after
    ]


def failed_runs(path: Path) -> dict[str, str]:
    """Return the errors of the failed runs of all sweeps in a directory, by the run's name."""
    stores = [SweepStore(file.parent) for file in sorted(path.rglob(SWEEP_FILE))]
    return {
        name: f"failed in {store.path}: {error}"
        for store in stores
        for name, error in store.failures().items()
    }


def over_seeds(pairs: Sequence[PairedPoint]) -> list[PairedPoint]:
    """Merge simulated experiments that differ only in the seed."""
    joined: dict[str, list[PairedPoint]] = {}
    for pair in pairs:
        repeated = pair.simulated and pair.experiment
        joined.setdefault(pair.experiment if repeated else pair.name, []).append(pair)
    return [
        group[0]
        if len(group) == 1
        else PairedPoint(
            f"{group[0].experiment}, {len(group)} seeds",
            False,
            tuple(summary for pair in group for summary in pair.before),
            tuple(summary for pair in group for summary in pair.after),
            causes=tuple(dict.fromkeys(cause for pair in group for cause in pair.causes)),
        )
        for group in joined.values()
    ]


def _gate_points(path: Path, left_out: Collection[str] = ()) -> dict[str, GatePoint]:
    """Return a directory's experiments by key; two comparable experiments have equal keys."""
    groups: dict[str, list[ComparedRun]] = {}
    if failed_runs(path) and not any(path.rglob(MANIFEST)):
        return {}
    for run in runs_below(path):
        if run.run.path.name in left_out:
            continue
        groups.setdefault(experiments.key_of(_shared(run)), []).append(run)
    points = [
        GatePoint(
            tuple(runs),
            _shared(runs[0]) | {"seed": sorted({run.experiment["seed"] for run in runs})},
        )
        for runs in groups.values()
    ]
    for point in points:
        if point.simulated and len(point.runs) > 1:
            one, two = (run.run.path for run in point.runs[:2])
            raise DataError(f"{one} and {two} are the same simulated experiment; remove one run")
    return {experiments.key_of(point.experiment): point for point in points}


def _shared(run: ComparedRun) -> dict[str, Any]:
    ignored = {"tag"} if _is_simulated(run) else {"tag", "seed"}
    return {key: value for key, value in run.experiment.items() if key not in ignored}


def _is_simulated(run: ComparedRun) -> bool:
    return run.summary["simulated"] is True


def _pair_over_changes(
    before: Mapping[str, GatePoint], after: dict[str, GatePoint], allowed: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Pair experiments that differ only in changed defaults or in values of ``allowed`` keys.

    The result maps the common key of each pair to the differences between the two experiments.
    """
    causes: dict[str, tuple[str, ...]] = {}
    lonely = {key: point for key, point in after.items() if key not in before}
    for key, point in before.items():
        if key in after:
            continue
        changes = {other: _changes(point, one) for other, one in lonely.items()}
        same = [
            other
            for other, found in changes.items()
            if {one.partition(" = ")[0] for one in found.by_choice} <= set(allowed)
        ]
        if len(same) == 1:
            after[key] = after.pop(same[0])
            del lonely[same[0]]
            found = changes[same[0]]
            # A changed default of a component is not reported if only one of two compared
            # experiments uses this component.
            exchanged = {name for one in found.by_choice for name in re.findall(r'"([^"]*)"', one)}
            of_both = [one for one in found.by_default if one.partition(".")[0] not in exchanged]
            causes[key] = (
                *(f"default changed: {one} ({experiments.WHERE})" for one in of_both),
                *(f"allowed change: {one.replace('(not ', '(now ')}" for one in found.by_choice),
            )
    return causes


def _changes(one: GatePoint, other: GatePoint) -> experiments.SpecChanges:
    told = (point.runs[0].run.manifest.get(experiments.CHOSEN) for point in (one, other))
    return experiments.spec_changes(one.experiment, next(told), other.experiment, next(told))


def _kept_defaults(point: GatePoint) -> tuple[str, ...]:
    """Return remarks on settings for which the rerun of a stored run uses an older default."""
    # An experiment that another version of fairbench stored may be invalid in this version.
    with suppress(UsageError):
        if point.simulated:
            changed = experiments.old_defaults(read_spec(point.runs[0].run.path / EXPERIMENT))
            return tuple(f"default changed: {one}, but these runs keep the old" for one in changed)
    return ()


def _refuse_unlike(
    points: Mapping[str, GatePoint], others: Mapping[str, GatePoint], where: Path
) -> None:
    lonely = [point for key, point in points.items() if key not in others]
    if not lonely:
        return
    count = f" ({len(lonely)} such runs)" if len(lonely) > 1 else ""
    raise DataError(
        f"{lonely[0].runs[0].run.path}: no run of the same experiment in {where}{count}; "
        f"{_nearest(lonely[0], list(others.values()))}"
    )


def _nearest(point: GatePoint, others: Sequence[GatePoint]) -> str:
    unlike = [_changes(point, other).by_choice for other in others]
    nearest = min(range(len(others)), key=lambda index: len(unlike[index]))
    found = unlike[nearest]
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return (
        f"the nearest run, {others[nearest].runs[0].run.path.name}, differs in "
        f"{', '.join(found[:MAX_SHOWN])}{more}; allow an intended change with --allow KEY"
    )


def _point_name(label: experiments.Label, point: GatePoint) -> str:
    seeds = point.experiment["seed"]
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return f"{label.place}, {label.scheduler}, {which}"
