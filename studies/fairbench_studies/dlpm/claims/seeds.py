"""Functions that judge claims about metrics over time; a claim must hold in every seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from fairbench.metrics.records import Floats
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import StoredRun
from fairbench_papers.timeline import response_times
from fairbench_studies.kit.seeds import derived

INTERVALS = 40

Runs = Mapping[str, StoredRun]
"""The runs with one seed, keyed by scheduler."""
Facts = TypeVar("Facts")


def over_seeds(
    cells: Sequence[SchedulerResults], facts: Callable[[Runs], Facts], names: Sequence[str]
) -> list[Facts]:
    """Return the results of ``facts`` for the seeds with a run of every scheduler in ``names``."""
    runs: dict[int, dict[str, StoredRun]] = {}
    for cell in cells:
        for one in cell.runs:
            runs.setdefault(one.summary["seed"], {})[cell.combined["scheduler"]] = one.run
    return [facts(of) for _, of in sorted(runs.items()) if set(names) <= set(of)]


def responses(run: StoredRun, end_s: float) -> Floats:
    """Return mean response times (s) by interval of arrival, shape (clients, INTERVALS)."""
    times: Floats = derived(
        run, "responses", lambda: response_times(run, np.linspace(0.0, end_s, INTERVALS + 1))
    )
    return times
