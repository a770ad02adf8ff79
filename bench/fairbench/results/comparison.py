"""Comparison of the runs of a sweep: their groups, and metrics that need several schedulers.

A *place* is a configuration: an experiment without its scheduler. Runs at one place with one seed
are compared with each other. A *cell* is a scheduler at one place, over all seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbench.config.spec import without_given
from fairbench.errors import DataError
from fairbench.files.toml_text import read_toml
from fairbench.metrics.client_summary import PERCENTS
from fairbench.metrics.max_min import max_min
from fairbench.metrics.metric import NOT_ALONE, NOT_CONTENDED
from fairbench.results.grid import Experiment, key_of, labels, place_of
from fairbench.results.intervals import combine
from fairbench.results.store import EXPERIMENT, MANIFEST, SUMMARY, StoredRun, Summary, read_run
from fairbench.results.summary_schema import check_summary
from fairbench.results.sweep_store import SWEEP_FILE, AloneRows, SweepStore
from fairbench.results.values import Value


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A stored run, its experiment, and its ``compared_summary``."""

    run: StoredRun
    experiment: Experiment
    summary: Summary


@dataclass(frozen=True)
class SchedulerResults:
    """A scheduler in one configuration: both labels, and its runs over seeds.

    ``known`` is the combination of runs that are no longer stored.
    """

    place: str
    scheduler: str
    runs: tuple[ComparedRun, ...]
    known: Summary | None = None

    @cached_property
    def combined(self) -> Summary:
        """The result of ``intervals.combine`` on the runs' summaries."""
        return self.known or combine([one.summary for one in self.runs])

    @cached_property
    def by_seed(self) -> Mapping[int, ComparedRun]:
        """The runs by seed, in ascending order."""
        runs = sorted(self.runs, key=lambda one: int(one.summary["seed"]))
        return {int(one.summary["seed"]): one for one in runs}

    @property
    def first(self) -> ComparedRun:
        """The run of the first seed."""
        return next(iter(self.by_seed.values()))

    @property
    def demand_limited(self) -> bool:
        """Return whether queues were partly empty in some window, so that rates compare loads."""
        return any(one.summary["demand_limited"] for one in self.runs)


def compare_sweep(path: Path) -> list[SchedulerResults]:
    """Return the cells of a sweep's finished runs, in the order of its points."""
    store = SweepStore(path)
    return compare(store.finished().values(), store.alone())


def compare(runs: Iterable[StoredRun], alone: Mapping[str, AloneRows]) -> list[SchedulerResults]:
    """Return the cells of finished runs by configuration, in order of first appearance.

    ``alone`` is by ``alone_key``; a client missing there has no sharing incentive. Raises DataError
    if a run's experiment cannot be read.
    """
    read = [(run, experiment_of(run)) for run in runs]
    keys = [alone_key(experiment) for _, experiment in read]
    best: dict[str, float] = {}
    contended: set[str] = set()
    for key, (run, _) in zip(keys, read, strict=True):
        best[key] = max(best.get(key, 0.0), run.summary["service_rate_tok_s"] or 0.0)
        if run.summary["notes"].get("min_entitlement_ratio") != NOT_CONTENDED:
            contended.add(key)
    compared = []
    for key, (run, experiment) in zip(keys, read, strict=True):
        summary = compared_summary(
            run.summary, best[key], alone.get(key, ()), contended=key in contended
        )
        compared.append(ComparedRun(run, experiment, summary))
    return cells_of(compared)


def cells_of(runs: Sequence[ComparedRun]) -> list[SchedulerResults]:
    """Return the cells of runs by configuration, in order of first appearance."""
    cells: dict[str, dict[str, list[ComparedRun]]] = {}
    for run, label in zip(runs, labels([one.experiment for one in runs]), strict=True):
        cells.setdefault(label.place, {}).setdefault(label.scheduler, []).append(run)
    return [
        SchedulerResults(place, scheduler, tuple(members))
        for place, at_place in cells.items()
        for scheduler, members in at_place.items()
    ]


def by_place(cells: Iterable[SchedulerResults]) -> dict[str, list[SchedulerResults]]:
    """Return the cells of each configuration, in order of first appearance."""
    places: dict[str, list[SchedulerResults]] = {}
    for cell in cells:
        places.setdefault(cell.place, []).append(cell)
    return places


def experiment_of(run: StoredRun) -> Experiment:
    """Return the tables of a run's experiment file. Raises DataError if it cannot be read."""
    path = run.path / EXPERIMENT
    return without_given(read_toml(path, str(path)))


def alone_key(experiment: Experiment) -> str:
    """Return the key of clients simulated alone, which depends on configuration and seed only."""
    return key_of(place_of(experiment))


def compared_summary(
    summary: Summary, best: float, alone: AloneRows, *, contended: bool = True
) -> dict[str, Any]:
    """Return a summary with the metrics that only a comparison can provide.

    ``best_service_rate_tok_s`` is ``best``, the most that any scheduler delivered at this
    configuration and seed. ``min_entitlement_best_ratio`` is the worst client's fraction of its
    max-min fair share of this total. ``sharing_incentive_p50``, ``_p95`` and ``_p99`` are those of
    the worst-off well-behaved client. Each client gets ``entitlement_best_tok_s``,
    ``entitlement_best_ratio`` and the incentives. Ratios of fair shares are undefined unless the
    configuration was ``contended`` under some scheduler. ``upper_bounds`` lists incentives that are
    upper bounds; lower bounds are in ``censored``. Reasons for nulls are in ``notes``.
    """
    notes, censored = dict(summary["notes"]), list(summary["censored"])
    upper_bounds: list[str] = []

    def noted(key: str, ratio: Value) -> float | None:
        if ratio.raw is None:
            notes[key] = ratio.reason
        elif ratio.bound:
            (censored if ratio.bound == ">" else upper_bounds).append(key)
        known: float | None = ratio.raw
        return known

    clients = _entitled(summary["clients"], best)
    if not contended:
        notes["min_entitlement_best_ratio"] = NOT_CONTENDED
        for client in clients:
            client["entitlement_best_ratio"] = None
            notes[f"clients.{client['client']}.entitlement_best_ratio"] = NOT_CONTENDED
    incentives = {percent: _incentives(summary, alone, percent) for percent in PERCENTS}
    for client in clients:
        for percent, ratios in incentives.items():
            key, name = f"sharing_incentive_p{percent}", client["client"]
            ratio = ratios.get(name, Value(None, reason="it misbehaves"))
            client[key] = noted(f"clients.{name}.{key}", ratio)
    shares = [one["entitlement_best_ratio"] for one in clients]
    additions = {
        "best_service_rate_tok_s": best,
        "min_entitlement_best_ratio": min((s for s in shares if s is not None), default=None),
    }
    for percent, ratios in incentives.items():
        key = f"sharing_incentive_p{percent}"
        additions[key] = noted(key, worst(list(ratios.values())))
    lists = {"clients": clients, "notes": notes, "censored": censored, "upper_bounds": upper_bounds}
    return {**summary, **additions, **lists}


def _entitled(clients: Sequence[Mapping[str, Any]], best: float) -> list[dict[str, Any]]:
    """Return the clients' rows with their max-min fair shares of the best total, in tokens/s."""
    entitlement = max_min(
        best,
        [client["demand_tok_s"] or 0.0 for client in clients],
        [client.get("weight", 1.0) for client in clients],
    )
    return [
        {
            **client,
            "entitlement_best_tok_s": float(share),
            "entitlement_best_ratio": (client["service_rate_tok_s"] or 0.0) / float(share)
            if share > 0
            else None,
        }
        for client, share in zip(clients, entitlement, strict=True)
    ]


def _incentives(summary: Summary, alone: AloneRows, percent: int) -> dict[str, Value]:
    """Return the sharing incentive of each well-behaved client, by name."""
    rows = {row["client"]: row for row in alone}
    found = {}
    for client in summary["clients"]:
        name = client["client"]
        if not client["misbehaving"]:
            censored = f"clients.{name}.p{percent}_s" in summary["censored"]
            ratio = incentive(client, rows.get(name), percent, censored=censored)
            found[name] = ratio if summary["simulated"] else Value(None, reason=LIVE)
    return found


LIVE = "only for simulated runs, because a client alone is simulated"

ClientRow = Mapping[str, Any]


def incentive(shared: ClientRow, alone: ClientRow | None, percent: int, *, censored: bool) -> Value:
    """Return one client's latency on the shared cluster over its latency alone on a part.

    At most 1 means no reason to leave the shared cluster. If one of the two latencies is a bound,
    so is the ratio. ``shared`` is the client's row of a summary, ``censored`` if the percentile is
    a lower bound there. ``alone`` is its row of the simulation of clients alone.
    """
    key = f"p{percent}_s"
    if alone is None:
        return Value(None, reason=NOT_ALONE)
    if shared.get(key) is None:
        return Value(None, reason="its latency is undefined on the shared cluster")
    if not alone.get(key):
        return Value(None, reason="its latency is undefined alone on its part of the cluster")
    alone_censored = key in alone["censored"]
    if censored and alone_censored:
        return Value(None, reason="both latencies are only lower bounds")
    return Value(shared[key] / alone[key], ">" if censored else "<" if alone_censored else "")


def worst(ratios: Sequence[Value]) -> Value:
    """Return the largest ratio and its certainty; undefined if any is undefined."""
    undefined = next((one for one in ratios if one.raw is None), None)
    if not ratios or undefined:
        return undefined or Value(None, reason="there is no well-behaved client")
    at_least = max((one.raw for one in ratios if one.bound != "<"), default=0.0)
    at_most = max((one.raw for one in ratios if one.bound == "<"), default=0.0)
    if any(one.bound == ">" for one in ratios):
        return Value(at_least, ">")
    return Value(at_least) if at_least >= at_most else Value(at_most, "<")


def runs_below(path: Path) -> Iterator[ComparedRun]:
    """Yield a directory's runs: for a sweep with comparison metrics, else all below.

    Raises DataError if there is none, or if a run is unreadable or incomplete.
    """
    if (path / SWEEP_FILE).exists():
        found = [run for cell in compare_sweep(path) for run in cell.runs]
    else:
        folders = sorted(file.parent for file in path.rglob(MANIFEST) if not _hidden(file, path))
        stored = [read_run(folder) for folder in folders]
        found = [ComparedRun(run, experiment_of(run), run.summary) for run in stored]
    if not found:
        raise DataError(f"{path}: " + ("holds no run" if path.is_dir() else "no such directory"))
    yield from whole(found)


def whole(runs: Iterable[ComparedRun]) -> Iterator[ComparedRun]:
    """Yield the runs. Raises DataError if one is unreadable or incomplete."""
    for run in runs:
        check_summary(run.summary, run.run.path / SUMMARY)
        _check_experiment(run)
        if run.run.manifest.get("complete") is not True:
            raise DataError(
                f"{run.run.path}: this run is incomplete and cannot be compared; finish it, "
                "or leave it out"
            )
        yield run


def _check_experiment(run: ComparedRun) -> None:
    """Raise DataError if an experiment file lacks the keys from which names are made."""
    workload = run.experiment.get("workload")
    present = {*run.experiment, *(workload if isinstance(workload, Mapping) else ())}
    for key in ("name", "scenario", "dp", "scheduler", "seed"):
        if key not in present:
            raise DataError(f"{run.run.path / EXPERIMENT}: {key}: missing")


def _hidden(file: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(below).parts)
