"""The measures of a run by which the VTC paper's claims are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fairbench.metrics.records import Floats
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.artifact import accumulated, accumulated_difference, even_points
from fairbench_studies.vtc.store import Seeds


def difference_of(trace: Trace, start_s: float = 0.0) -> float:
    """Return the largest service difference after ``start_s``, at the paper's points in time."""
    points = even_points(float(trace.req_time_s.max()))
    later = points[points > start_s]
    return float(accumulated_difference(trace, later, start_s).max())


def rates(trace: Trace, start_s: float, end_s: float) -> Floats:
    """Return the service per second of each client from ``start_s`` to ``end_s``."""
    service = accumulated(trace, np.array([end_s]), start_s)[:, 0]
    return service / (end_s - start_s)


def mean_ttft_s(trace: Trace, client: int) -> float:
    """Return the mean time to first token (s) of a client's served requests."""
    mine = (trace.client == trace.clients[client]) & trace.finished
    return float(trace.first_token_latency_s[mine].mean())


def by_seed(seeds: Seeds, run: str, name: str, measure: Callable[[Trace], Any]) -> list[Any]:
    """Return a measure of ``run`` for each seed, and store each value under ``name``."""
    return [one.measured(run, name, measure) for one in seeds]


def listed(values: Sequence[float]) -> str:
    """Return whole numbers as text, separated by commas."""
    return ", ".join(f"{value:,.0f}" for value in values)
