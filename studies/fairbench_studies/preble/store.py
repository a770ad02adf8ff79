"""The runs of the Preble paper in a folder; missing runs are simulated and stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.config.spec import identity
from fairbench.execute.context import RunContext
from fairbench.execute.repeats import simulate_all
from fairbench.metrics.records import FINISHED, Requests
from fairbench.results.header import basis
from fairbench.results.run_tables import read_tables
from fairbench.results.store import StoredRun, runs_in
from fairbench_studies.preble.experiments import WARMUP_S, Key, experiments
from fairbench_studies.preble.speed import Speed, measure


class Latency(NamedTuple):
    """Seconds from a request's arrival to its end after the warm-up, as means over seeds."""

    mean_s: float
    p99_s: float
    hit_rate: float


class Results(NamedTuple):
    """The results: latencies by key, speed of decisions, hardware, and number of seeds."""

    latencies: Mapping[Key, Latency]
    speeds: Sequence[Speed]
    basis: str
    seeds: int


def fill(folder: Path, context: RunContext, *, seeds: int) -> None:
    """Simulate missing runs in parallel. Raises the error of a run."""
    done = _stored(folder)
    wanted = [one.spec(seed) for one in experiments().values() for seed in range(seeds)]
    specs = {identity(spec): spec for spec in wanted}
    missing = [spec for key, spec in specs.items() if key not in done]
    if missing:
        simulate_all(missing, folder, context)


def read(folder: Path, *, seeds: int) -> Results:
    """Read the results in a folder, without keys that have a missing run."""
    stored = _stored(folder)
    found: dict[Key, Latency] = {}
    seen: dict[str, Latency] = {}
    bases: set[str] = set()
    for key, one in experiments().items():
        names = [identity(one.spec(seed)) for seed in range(seeds)]
        if not all(name in stored for name in names):
            continue
        for name in names:
            if name not in seen:
                seen[name] = _latency(stored[name])
                bases.add(basis(stored[name].summary))
        columns = zip(*(seen[name] for name in names), strict=True)
        found[key] = Latency(*(fmean(column) for column in columns))
    return Results(found, measure(), "; ".join(sorted(bases)), seeds)


def _latency(run: StoredRun) -> Latency:
    requests = read_tables(run).requests
    return Latency(*latencies_of(requests), float(run.summary["cache_hit_rate"]))


def latencies_of(requests: Requests) -> tuple[float, float]:
    """Return mean and P99 in seconds; infinite if a request was not finished."""
    counted = requests.arrival_s >= WARMUP_S
    taken_s = (requests.finish_s - requests.arrival_s)[counted]
    taken_s[requests.status[counted] != FINISHED] = np.inf
    return float(taken_s.mean()), float(np.percentile(taken_s, 99, method="higher"))


def _stored(folder: Path) -> dict[str, StoredRun]:
    """Return the complete runs of a folder by the identity of their specs."""
    runs = runs_in(folder) if folder.is_dir() else []
    return {run.manifest["spec_identity"]: run for run in runs if run.manifest["complete"]}
