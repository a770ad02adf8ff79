"""The stored runs of the Preble paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fairbench.config.spec import identity
from fairbench.metrics.records import FINISHED, Floats, Requests
from fairbench.results.header import basis
from fairbench.results.run_tables import read_tables
from fairbench.results.store import StoredRun
from fairbench_studies.kit.paper_runs import stored
from fairbench_studies.preble.experiments import WARMUP_S, Key, experiments
from fairbench_studies.preble.speed import measure


class Latency(NamedTuple):
    """Seconds from a request's arrival to its end after the warm-up, and the hit rate."""

    mean_s: float
    p99_s: float
    hit_rate: float


class Results(NamedTuple):
    """The latencies of each seed by key, the speeds of decisions by workload, and the hardware."""

    runs: Mapping[Key, Sequence[Latency]]
    speeds: Mapping[str, Sequence[float]]
    basis: str

    @property
    def latencies(self) -> Mapping[Key, Latency]:
        """The means over the seeds."""
        return {
            key: Latency(*(fmean(column) for column in zip(*each, strict=True)))
            for key, each in self.runs.items()
        }

    def each(self, key: Key, metric: str) -> Floats:
        """Return a metric of each seed."""
        return np.array([getattr(one, metric) for one in self.runs[key]])


def read(folder: Path, seeds: int) -> Results:
    """Read the results of the first seeds, without keys that have a missing run."""
    there = stored(folder)
    names = {
        key: [identity(one.spec(seed)) for seed in range(seeds)]
        for key, one in experiments().items()
    }
    complete = {key: of for key, of in names.items() if all(name in there for name in of)}
    used = {name: there[name] for of in complete.values() for name in of}
    seen = {name: _latency(run) for name, run in used.items()}
    bases = {basis(run.summary) for run in used.values()}
    return Results(
        {key: [seen[name] for name in of] for key, of in complete.items()},
        measure(),
        "; ".join(sorted(bases)),
    )


def _latency(run: StoredRun) -> Latency:
    requests = read_tables(run).requests
    return Latency(*latencies_of(requests), float(run.summary["cache_hit_rate"]))


def latencies_of(requests: Requests) -> tuple[float, float]:
    """Return mean and P99 in seconds; infinite if a request was not finished."""
    counted = requests.arrival_s >= WARMUP_S
    taken_s = (requests.finish_s - requests.arrival_s)[counted]
    taken_s[requests.status[counted] != FINISHED] = np.inf
    return float(taken_s.mean()), float(np.percentile(taken_s, 99, method="higher"))
