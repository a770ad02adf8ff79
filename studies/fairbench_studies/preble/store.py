"""Functions that read the stored runs for the Preble paper's figures and claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fairbench.config.spec import identity
from fairbench.metrics.records import FINISHED, Floats, Requests
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench.results.summary import basis
from fairbench_studies.kit.paper_runs import listed_seeds, stored
from fairbench_studies.preble.experiments import WARMUP_S, Key, experiments
from fairbench_studies.preble.speed import measure


class Latency(NamedTuple):
    """Latencies of the requests after the warm-up, and the cache hit rate of a run.

    All times are in seconds. ``mean_s`` and ``p99_s`` are times from arrival to completion.
    ``ttft_s`` is the mean time to first token, and ``tpot_s`` the mean time per later output token.
    """

    mean_s: float
    p99_s: float
    hit_rate: float
    ttft_s: float
    tpot_s: float


class Results(NamedTuple):
    """Results of runs: latencies by key and seed, decisions per second, and hardware."""

    runs: Mapping[Key, Sequence[Latency]]
    speeds: Mapping[str, Sequence[float]]
    basis: str

    def each(self, keys: Iterable[Key], metric: str) -> dict[Key, Floats]:
        """Return a metric of the runs in ``keys``, for the seeds that all these runs have."""
        runs = {key: self.runs[key] for key in keys}
        seeds = min(map(len, runs.values()))
        return {
            key: np.array([getattr(one, metric) for one in of[:seeds]]) for key, of in runs.items()
        }

    def origin(self) -> str:
        """Return a text that names the hardware of the runs and the seeds of each figure."""
        seeds: dict[str, int] = {}
        for key, of in self.runs.items():
            seeds[key.figure] = min(len(of), seeds.get(key.figure, len(of)))
        listed = [
            f"{listed_seeds(count)} ({', '.join(one for one in seeds if seeds[one] == count)})"
            for count in sorted({*seeds.values()})
        ]
        return f"{self.basis}; {'; '.join(listed)}"


def read(folder: Path, seeds: int) -> Results:
    """Read each experiment's results for seeds 0 to ``seeds`` - 1, up to its first missing seed."""
    there = stored(folder)
    found: dict[Key, list[Latency]] = {}
    seen: dict[str, Latency] = {}
    bases = set()
    for key, one in experiments().items():
        names = (identity(one.spec(seed)) for seed in range(seeds))
        for name in takewhile(there.__contains__, names):
            if name not in seen:
                seen[name] = _latency(there[name])
                bases.add(basis(there[name].summary))
            found.setdefault(key, []).append(seen[name])
    return Results(found, measure(), "; ".join(sorted(bases)))


def _latency(run: StoredRun) -> Latency:
    requests = read_tables(run).requests
    hit_rate = float(run.summary["cache_hit_rate"])
    return Latency(*latencies_of(requests), hit_rate, *token_times_of(requests))


def latencies_of(requests: Requests, warmup_s: float = WARMUP_S) -> tuple[float, float]:
    """Return the mean and P99 latency in seconds of requests that arrive after ``warmup_s``.

    An unfinished request counts with an infinite latency.
    """
    counted = requests.arrival_s >= warmup_s
    taken_s = (requests.finish_s - requests.arrival_s)[counted]
    taken_s[requests.status[counted] != FINISHED] = np.inf
    return float(taken_s.mean()), float(np.percentile(taken_s, 99, method="higher"))


def token_times_of(requests: Requests, warmup_s: float = WARMUP_S) -> tuple[float, float]:
    """Return the mean TTFT and TPOT in seconds of requests that arrive after ``warmup_s``.

    The mean TTFT and TPOT are infinite if any request after ``warmup_s`` is unfinished. TPOT is the
    time per output token after the first token, so a request with one output token has no TPOT.
    """
    counted = requests.arrival_s >= warmup_s
    if (requests.status[counted] != FINISHED).any():
        return inf, inf
    first_s, end_s = requests.first_token_s[counted], requests.finish_s[counted]
    later = requests.output_tokens[counted] - 1
    some = later > 0
    each_s = (end_s - first_s)[some] / later[some]
    return float((first_s - requests.arrival_s[counted]).mean()), float(each_s.mean())
