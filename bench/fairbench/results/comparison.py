"""Comparisons of stored runs: all schedulers in a configuration, and pairs of schedulers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, inf, isfinite, nan
from pathlib import Path
from typing import Any

from fairbench.config.cluster import ENGINE_CODE
from fairbench.config.spec import without_given
from fairbench.errors import DataError, UsageError
from fairbench.files.formats import read_toml
from fairbench.metrics.catalogue import CATALOGUE, CLIENTS, metric_of
from fairbench.metrics.metric import Better
from fairbench.metrics.reasons import NOT_CONTENDED, Noted
from fairbench.metrics.sharing_incentive import RunBeside
from fairbench.results.experiments import Experiment, differences, grid_labels, key_of, place_of
from fairbench.results.significance import (
    LEVEL,
    Decision,
    Difference,
    combine_summaries,
    difference,
    log_ratio,
    mean_value,
)
from fairbench.results.store import (
    EXPERIMENT,
    MANIFEST,
    SUMMARY,
    SWEEP_FILE,
    AloneRows,
    StoredRun,
    Summary,
    SweepStore,
    read_run,
)
from fairbench.results.summary import (
    Value,
    check_summary,
    code_name,
    is_same_code,
    more_is_better,
    value_of,
    values_of,
)
from fairbench.workloads.traces import DRAWN


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A stored run, its experiment, and its summary, which includes metrics of comparisons.

    ``planned`` has two sizes of the run's sweep, finished or not: ``planned_runs`` (the number of
    seeds of this experiment) and ``sweep_points`` (the number of all points).
    """

    run: StoredRun
    experiment: Experiment
    summary: Summary
    planned: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SchedulerResults:
    """The runs of one scheduler in one configuration, and the names of scheduler and configuration.

    If the runs are no longer stored, ``known`` is their combined summary.
    """

    place: str
    scheduler: str
    runs: tuple[ComparedRun, ...]
    known: Summary | None = None

    @cached_property
    def combined(self) -> Summary:
        """The combined summary, with the mean and interval of each metric over the runs."""
        if self.known:
            return self.known
        return combine_summaries([one.summary for one in self.runs]) | {**self.runs[0].planned}

    @property
    def planned_runs(self) -> int:
        """The number of seeds that the sweep plans, including seeds that are not finished."""
        return int(self.combined.get("planned_runs", len(self.combined["seeds"])))

    @cached_property
    def by_seed(self) -> Mapping[int, ComparedRun]:
        """The runs of a scheduler by seed, in ascending order."""
        runs = sorted(self.runs, key=lambda one: int(one.summary["seed"]))
        return {int(one.summary["seed"]): one for one in runs}

    @property
    def first(self) -> ComparedRun:
        """The scheduler's run with the lowest seed."""
        return next(iter(self.by_seed.values()))

    @property
    def depends_on_seed(self) -> bool:
        """Whether the results of the scheduler's runs differ between seeds."""
        found = [
            {key: one.raw for key, one in values_of(run.summary).items() if key != "seed"}
            for run in self.runs
        ]
        return any(one != found[0] for one in found)

    @property
    def demand_limited(self) -> bool:
        """Return whether low demand limited the service of a run: queues were often empty."""
        return any(one.summary["demand_limited"] for one in self.runs)


def compare_sweep(path: Path) -> list[SchedulerResults]:
    """Return the results of each scheduler and configuration in a sweep, in the sweep's order."""
    store = SweepStore(path)
    return compare(store.finished().values(), store.alone(), store.points())


def compare(
    runs: Iterable[StoredRun],
    alone: Mapping[str, AloneRows],
    points: Mapping[str, str] | None = None,
) -> list[SchedulerResults]:
    """Group finished runs by configuration and scheduler, in order of first appearance.

    ``alone`` has the latencies of clients that were simulated alone, by ``alone_key``. The sharing
    incentive is computed only for clients in ``alone``. ``points`` names all points of the sweep,
    finished or not, by identity. Raises DataError if an experiment cannot be
    read, or if the code of an engine in a Python environment changed between runs.
    """
    read = [(run, experiment_of(run)) for run in runs]
    _check_one_code([ComparedRun(run, one, run.summary) for run, one in read])
    keys = [alone_key(experiment) for _, experiment in read]
    best: dict[str, float] = {}
    contended: set[str] = set()
    for key, (run, _) in zip(keys, read, strict=True):
        best[key] = max(best.get(key, 0.0), run.summary["service_rate_tok_s"] or 0.0)
        if run.summary["notes"].get("min_entitlement_ratio") != NOT_CONTENDED:
            contended.add(key)
    compared, planned = [], _planned(points or {})
    for key, (run, experiment) in zip(keys, read, strict=True):
        summary = compared_summary(
            run.summary, best[key], alone.get(key, ()), contended=key in contended
        )
        sizes = planned.get(run.manifest.get("spec_identity", ""), {})
        compared.append(ComparedRun(run, experiment, summary, sizes))
    return cells_of(compared)


def _planned(points: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Return ``ComparedRun.planned`` for each point of a sweep, by identity."""
    without_seed = {one: name.rpartition(", seed ")[0] for one, name in points.items()}
    seeds = Counter(without_seed.values())
    return {
        one: {"planned_runs": seeds[name], "sweep_points": len(points)}
        for one, name in without_seed.items()
    }


def cells_of(runs: Sequence[ComparedRun]) -> list[SchedulerResults]:
    """Group runs by configuration and scheduler, in order of first appearance."""
    cells: dict[str, dict[str, list[ComparedRun]]] = {}
    for run, label in zip(runs, grid_labels([one.experiment for one in runs]), strict=True):
        cells.setdefault(label.place, {}).setdefault(label.scheduler, []).append(run)
    return [
        SchedulerResults(place, scheduler, tuple(members))
        for place, at_place in cells.items()
        for scheduler, members in at_place.items()
    ]


def by_place(cells: Iterable[SchedulerResults]) -> dict[str, list[SchedulerResults]]:
    """Return the schedulers' results by configuration, in order of first appearance."""
    places: dict[str, list[SchedulerResults]] = {}
    for cell in cells:
        places.setdefault(cell.place, []).append(cell)
    return places


def experiment_of(run: StoredRun) -> Experiment:
    """Return the tables in the experiment file of a run.

    Raises DataError if the file cannot be read.
    """
    path = run.path / EXPERIMENT
    return without_given(read_toml(path, str(path)))


def is_replay(run: ComparedRun) -> bool:
    """Return whether a run gives the same results with every seed.

    These runs are simulated replays of a trace without random times, routers or decisions.
    """
    summary, cluster = run.summary, run.experiment.get("settings", {}).get("cluster", {})
    random = (
        DRAWN in str(summary.get("synthetic")),
        summary.get("timing_error_pct"),
        summary.get("routers"),
        cluster.get("eviction_loss"),
        "random" in (summary.get("local"), summary.get("gateway")),
        run.run.manifest.get("scheduler_files"),  # schedulers of users, which may shuffle
    )
    return bool(summary.get("simulated") and summary.get("trace")) and not any(random)


def alone_key(experiment: Experiment) -> str:
    """Return the key under which a sweep stores the latencies of clients simulated alone."""
    return key_of(place_of(experiment))


def compared_summary(
    summary: Summary, best: float, alone: AloneRows, *, contended: bool = True
) -> dict[str, Any]:
    """Add the metrics that only a comparison can provide to a run's summary.

    ``best`` is the largest service rate (tokens/s) of any scheduler in the same configuration with
    the same seed. ``min_entitlement_best_ratio`` is the lowest ratio of a client's service to its
    share if ``best`` is divided by max-min fairness. ``min_entitlement_best_ratio`` is defined if
    clients lacked service under some scheduler (``contended``). The metrics
    ``sharing_incentive_p50``, ``_p95`` and ``_p99`` are those of the worst-off well-behaved client.

    Each client's row gets ``entitlement_best_tok_s``, ``entitlement_best_ratio`` and
    ``sharing_incentive_*``. ``upper_bounds`` lists the keys whose values are upper bounds, and
    ``censored`` lists lower bounds; ``notes`` explains null values.
    """
    beside = RunBeside(summary, best, alone, contended=contended)
    notes, censored = dict(summary["notes"]), list(summary["censored"])
    upper_bounds: list[str] = []

    def known(key: str, value: float | Noted | None) -> float | None:
        found = value if isinstance(value, Noted) else Noted(nan if value is None else value)
        if isfinite(found.value):
            if found.bound:
                (censored if found.bound == ">" else upper_bounds).append(key)
            return found.value
        if found.reason:
            notes[key] = found.reason
        return None

    additions: dict[str, Any] = {}
    clients = [dict(client) for client in summary["clients"]]
    for key, metric in CATALOGUE.items():
        if metric.clients_beside:
            for client, value in zip(clients, metric.clients_beside(beside), strict=True):
                client[key] = known(f"{CLIENTS}{client['client']}.{key}", value)
        if metric.beside:
            additions[key] = known(key, metric.beside(beside))
    lists = {"clients": clients, "notes": notes, "censored": censored, "upper_bounds": upper_bounds}
    return {**summary, **additions, **lists}


def runs_below(path: Path) -> Iterator[ComparedRun]:
    """Yield the runs in a directory at any depth.

    If the directory is a sweep, the summaries of its runs include metrics of comparisons. Raises
    DataError if the directory contains no run, or if a run is unreadable or incomplete.
    """
    if (path / SWEEP_FILE).exists():
        found = [run for cell in compare_sweep(path) for run in cell.runs]
    else:
        folders = sorted(
            file.parent
            for file in path.rglob(MANIFEST)
            if not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        stored = [read_run(folder) for folder in folders]
        found = [ComparedRun(run, experiment_of(run), run.summary) for run in stored]
    if not found:
        raise DataError(f"{path}: " + ("contains no run" if path.is_dir() else "no such directory"))
    yield from checked_runs(found)


def checked_runs(runs: Iterable[ComparedRun]) -> Iterator[ComparedRun]:
    """Check each of the given runs, and then yield it.

    Raises DataError if a run is incomplete or cannot be read.
    """
    for run in runs:
        check_summary(run.summary, run.run.path / SUMMARY)
        workload = run.experiment.get("workload")
        present = {*run.experiment, *(workload if isinstance(workload, Mapping) else ())}
        for key in ("name", "scenario", "dp", "scheduler", "seed"):
            if key not in present:
                raise DataError(f"{run.run.path / EXPERIMENT}: {key}: missing")
        if run.run.manifest.get("complete") is not True:
            raise DataError(
                f"{run.run.path}: this run is incomplete and cannot be compared; finish it, "
                "or leave it out"
            )
        yield run


# A change of less than 0.05% of the baseline counts as neither better nor worse.
LEAST_CHANGE = 0.0005


@dataclass(frozen=True, slots=True)
class MetricContrast:
    """The means of a metric under two schedulers over their common seeds, and the difference.

    ``more_seeds`` estimates how many more seeds would make the schedulers' difference significant.
    ``more_seeds`` is None if no seeds or too many seeds are needed, or if more seeds cannot help.
    Verdicts on metrics in seconds use ``ratios``, which is a difference of logarithms.
    """

    metric: str
    baseline: Value
    other: Value
    difference: Difference
    decision: Decision
    more_seeds: int | None
    ratios: Difference | None = None

    @property
    def ratio(self) -> float | None:
        """The compared scheduler's mean divided by the baseline's mean.

        For metrics in seconds, ``ratio`` is the geometric mean of the seeds' ratios. ``ratio`` is
        None if a scheduler's mean is only a bound, or if the baseline's mean is 0.
        """
        if self.ratios is not None and self.ratios.mean is not None:
            return exp(self.ratios.mean)
        if self.difference.bounded or not self.baseline.raw:
            return None
        return float(self.other.raw / self.baseline.raw)


@dataclass(frozen=True, slots=True)
class Contrast:
    """A comparison of a scheduler (or experiment) with the baseline.

    ``left_out`` are the seeds that only one of the compared experiments has. ``unlike`` are the
    keys, besides the scheduler, in which the compared experiments differ.
    """

    baseline: SchedulerResults
    other: SchedulerResults
    seeds: tuple[int, ...]
    left_out: tuple[int, ...]
    unlike: tuple[str, ...]
    metrics: tuple[MetricContrast, ...]

    @property
    def exact(self) -> bool:
        """Whether the results do not depend on the seed, as in replays of a trace."""
        sides = (self.baseline, self.other)
        return _are_replays(*sides) or (
            len(self.seeds) > 1 and not any(side.depends_on_seed for side in sides)
        )


def _are_replays(*sides: SchedulerResults) -> bool:
    return all(is_replay(run) for side in sides for run in side.runs)


def sides_of(runs: Iterable[ComparedRun]) -> list[SchedulerResults]:
    """Group runs by experiment, so that experiments can be compared seed by seed.

    Raises DataError for two runs of one experiment and seed, and for runs of one experiment with
    different engine code.
    """
    sides = cells_of(list(runs))
    for side in sides:
        for run in side.runs:
            if (other := side.by_seed[int(run.summary["seed"])]) is not run:
                raise DataError(
                    f"{run.run.path} and {other.run.path} have the same experiment and "
                    "seed; keep one of them, or compare their directories"
                )
        _check_one_code(side.runs)
    return sides


def _check_one_code(runs: Iterable[ComparedRun]) -> None:
    """Raise DataError if the code of an engine in a Python environment changed between runs."""
    first: dict[tuple[Any, Any], ComparedRun] = {}
    for run in runs:
        code = run.summary.get(ENGINE_CODE)
        if code is None:
            continue
        other = first.setdefault((run.experiment.get(ENGINE_CODE), code["engine"]), run)
        if not is_same_code(code, before := other.summary[ENGINE_CODE]):
            raise DataError(
                f"{other.run.path} used {code_name(before)}, but {run.run.path} used "
                f"{code_name(code)} with the same Python; keep the runs of one engine code, or "
                "compare the directories"
            )


def sides_below(path: Path) -> list[SchedulerResults]:
    """Group the runs in a directory by experiment, for a comparison.

    Raises the errors that ``runs_below`` and ``sides_of`` raise.
    """
    return sides_of(runs_below(path))


def contrast(
    baseline: SchedulerResults, other: SchedulerResults, metrics: Sequence[str]
) -> Contrast:
    """Compare the runs of a scheduler with the runs of the baseline.

    Raises UsageError if the two schedulers have no seed in common.
    """
    seeds = sorted(baseline.by_seed.keys() & other.by_seed.keys())
    if not seeds:
        raise UsageError(
            f"{baseline.scheduler} has {seed_text(baseline.by_seed)} and {other.scheduler} has "
            f"{seed_text(other.by_seed)}: a comparison needs seeds that both schedulers have"
        )
    left_out = sorted(baseline.by_seed.keys() ^ other.by_seed.keys())
    places = [place_of(side.first.experiment) | {"seed": None} for side in (other, baseline)]
    return Contrast(
        baseline,
        other,
        tuple(seeds),
        tuple(left_out),
        tuple(differences(*places)),
        tuple(_metric(baseline, other, seeds, metric) for metric in metrics),
    )


def _metric(
    baseline: SchedulerResults, other: SchedulerResults, seeds: Sequence[int], metric: str
) -> MetricContrast:
    first, second = (
        [value_of(side.by_seed[seed].summary, metric) for seed in seeds]
        for side in (baseline, other)
    )
    pairs = [one for one in zip(first, second, strict=True) if None not in (one[0].raw, one[1].raw)]
    entry = metric_of(metric)
    replay = _are_replays(baseline, other)
    found = difference(first, second, most=entry.most if entry else inf, replay=replay)
    in_seconds = entry is not None and entry.unit == "s"
    ratios = log_ratio(first, second, replay=replay) if in_seconds else None
    deciding = ratios or found
    decision = deciding.decision(entry.better if entry else Better.NEITHER)
    row = MetricContrast(
        metric,
        mean_value([one for one, _ in pairs]),
        mean_value([one for _, one in pairs]),
        found,
        decision,
        deciding.more_seeds() if decision is Decision.INCONCLUSIVE else None,
        ratios,
    )
    is_small = row.ratio is not None and abs(row.ratio - 1) < LEAST_CHANGE
    judged = decision in (Decision.BETTER, Decision.WORSE)
    return replace(row, decision=Decision.SAME) if judged and is_small else row


def known_metrics(sides: Iterable[SchedulerResults]) -> list[str]:
    """Return the runs' metrics that rank schedulers, without metrics of single clients."""
    keys = dict.fromkeys(key for side in sides for key in values_of(side.first.summary))
    entries = {key: metric_of(key) for key in keys if not key.startswith(CLIENTS)}
    return [key for key, entry in entries.items() if entry and entry.better is not Better.NEITHER]


def check_metrics(metrics: Iterable[str], sides: Iterable[SchedulerResults]) -> None:
    """Raise UsageError for a metric that no run has, or that does not rank schedulers.

    The metric of one client is written ``clients.NAME.KEY``.
    """
    known = {key for side in sides for key in values_of(side.first.summary)}
    for metric in metrics:
        more_is_better(metric, known)


def seed_text(seeds: Iterable[int]) -> str:
    """Return seeds as text: ``seed 3``, ``seeds 0 to 4`` or ``seeds 0, 2, 7``."""
    listed = sorted(seeds)
    if len(listed) == 1:
        return f"seed {listed[0]}"
    together = listed[-1] - listed[0] == len(listed) - 1
    return "seeds " + (f"{listed[0]} to {listed[-1]}" if together else ", ".join(map(str, listed)))


def contrast_json(contrasts: Sequence[Contrast]) -> dict[str, Any]:
    """Return comparisons as JSON types, with None for undefined and unknown values."""
    return {"level": LEVEL, "comparisons": [_as_json(one) for one in contrasts]}


def _as_json(one: Contrast) -> dict[str, Any]:
    return {
        "place": one.baseline.place,
        "baseline": one.baseline.scheduler,
        "other": one.other.scheduler,
        "seeds": list(one.seeds),
        "seeds_left_out": list(one.left_out),
        "unlike": list(one.unlike),
        "metrics": {row.metric: _metric_json(row) for row in one.metrics},
    }


def _factor(row: MetricContrast, end: str) -> float | None:
    value = getattr(row.ratios, end, None)
    return None if value is None else exp(value)


def _metric_json(row: MetricContrast) -> dict[str, Any]:
    found, entry = row.difference, metric_of(row.metric)
    return {
        "better": entry.better.value if entry else "",
        "baseline": row.baseline.raw,
        "other": row.other.raw,
        "ratio_to_baseline": row.ratio,
        "difference": found.mean,
        "low": found.low,
        "high": found.high,
        "ratio_low": _factor(row, "low"),
        "ratio_high": _factor(row, "high"),
        "p": (row.ratios or found).p,
        "runs": found.runs,
        "undefined": found.undefined,
        "bounded": found.bounded,
        "decision": row.decision.value,
        "more_seeds": row.more_seeds,
    }
