"""The waits of ``d2lpm``'s requests with separate prefill and decode workers (long-qa s2).

    python studies disaggregation-waits

The script simulates 180 s of arrivals with seed 0 in ten seconds of CPU time, and writes means from
60 to 180 s to results/tables/disaggregation-waits.csv.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from fairbench_studies.disaggregation.table import APART, P50
from fairbench_studies.kit.table_store import write

START_S, END_S = 60.0, 180.0
FAST = {"disaggregation.bandwidth_gb_s": 1000.0}
ADMISSION = {"disaggregation.reserve": "admission"}
CLUSTERS: Mapping[str, Mapping[str, Any]] = {
    "SGLang": {},
    "SGLang, link of 1,000 GB/s": FAST,
    "at admission": ADMISSION,
    "at admission, link of 1,000 GB/s": {**ADMISSION, **FAST},
}
TIMES = ("arrival_s", "reserved_s", "admitted_s", "computed_s", "sent_s", "finish_s")

Floats = NDArray[np.float64]


def row(cluster: str) -> dict[str, str]:
    """Simulate a cluster, and return the table row of the run."""
    flags = {"workload": "long-qa", "scenario": "s2", "scheduler": "d2lpm", "seed": 0, **APART}
    spec = resolve({**flags, "duration_s": END_S}, CLUSTERS[cluster])
    result = simulate(spec)
    requests = result.requests
    arrived, reserved, admitted, computed, sent, finished = (
        np.nan_to_num(np.asarray(requests[name], dtype=float), nan=END_S) for name in TIMES
    )
    tokens = np.asarray(requests["input_tokens"], dtype=float)
    pool = spec.dp // 2 * int(result.summary["pool_tokens"])
    parts = [(reserved, computed), (computed, sent), (sent, finished)]
    held = [100 * _mean(*part, tokens) / pool for part in parts]
    worker = np.asarray(requests["worker"])
    ready = admitted if CLUSTERS[cluster].get("disaggregation.reserve") else reserved
    first = arrived if ready is admitted else reserved
    idle = [_uncovered(first[worker == one], computed[worker == one]) for one in np.unique(worker)]
    return {
        "cluster": cluster,
        "P50, s": f"{result.summary[P50]:.0f}",
        "waiting requests": f"{_mean(arrived, ready, np.ones_like(tokens)):.0f}",
        "memory of prompts not computed, %": f"{held[0]:.0f}",
        "memory of prompts not sent, %": f"{held[1]:.0f}",
        "memory of other requests, %": f"{held[2]:.0f}",
        "prefill without a request, %": " and ".join(f"{100 * one:.0f}" for one in idle),
    }


def _mean(start: Floats, end: Floats, weight: Floats) -> float:
    """Return the time average of the summed weights of requests between ``start`` and ``end``."""
    lasts = np.clip(end, START_S, END_S) - np.clip(start, START_S, END_S)
    return float((weight * lasts.clip(min=0)).sum()) / (END_S - START_S)


def _uncovered(start: Floats, end: Floats) -> float:
    """Return the fraction of the time in which no request is between its ``start`` and ``end``."""
    order = np.argsort(start)
    free, until = 0.0, START_S
    for at, to in zip(start[order], end[order], strict=True):
        free += max(0.0, min(at, END_S) - until)
        until = max(until, min(to, END_S))
    return (free + max(0.0, END_S - until)) / (END_S - START_S)


def main() -> None:
    """Simulate the clusters, and write the table of requests' waits."""
    write("disaggregation-waits", [row(cluster) for cluster in CLUSTERS])
