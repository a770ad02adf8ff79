"""Functions that read the stored runs for the VTC paper's figures and claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from fairbench.config.spec import identity
from fairbench.metrics.records import FINISHED, Requests
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench.results.summary import basis
from fairbench_studies.kit.paper_runs import stored
from fairbench_studies.kit.trace import Trace
from fairbench_studies.vtc.experiments import possible
from fairbench_studies.vtc.extremes import Extremes, extremes_of

VTC = "vtc"


@dataclass(frozen=True, slots=True)
class Results:
    """The traces of all runs of one seed, by run name, and facts about the runs.

    ``gaps`` are the largest service differences of two clients while both wait, or NaN if no two
    clients wait at the same time. ``extremes`` holds, for runs under VTC, the largest values of
    quantities that theorems bound. ``known`` holds the measures that verdicts use, by run and name
    of the measure. Measures in ``known`` are not computed again from traces.
    """

    traces: Mapping[str, Trace]
    gaps: Mapping[str, float]
    bases: Mapping[str, str]
    extremes: Mapping[str, Extremes]
    known: dict[tuple[str, str], Any] = field(default_factory=dict)

    def measured(self, run: str, name: str, measure: Callable[[Trace], Any]) -> Any:
        """Return the value of a measure in a run. Raises KeyError if the run is missing."""
        if (run, name) not in self.known:
            self.known[run, name] = measure(self.traces[run])
        return self.known[run, name]

    def basis(self, names: Iterable[str] | None = None) -> str:
        """Return a text about the hardware on which the named runs, or all runs, were simulated."""
        chosen = self.bases if names is None else names
        return "; ".join(sorted({self.bases[name] for name in chosen}))


Seeds = Sequence[Results]


def read(folder: Path, seeds: int) -> list[Results]:
    """Read the runs with the first ``seeds`` seeds from a folder."""
    runs = stored(folder)
    return [_read(runs, seed) for seed in range(seeds)]


def _read(runs: Mapping[str, StoredRun], seed: int) -> Results:
    named = possible()
    found = {
        name: run
        for name, one in named.items()
        if (run := runs.get(identity(one.spec(seed)))) is not None
    }
    under_vtc = {name: extremes_of(run) for name, run in found.items() if named[name].local == VTC}
    return Results(
        {name: trace_of(run) for name, run in found.items()},
        {name: gap_of(run) for name, run in found.items()},
        {name: basis(run.summary) for name, run in found.items()},
        {name: one for name, one in under_vtc.items() if one is not None},
    )


def trace_of(run: StoredRun) -> Trace:
    """Reduce a simulated run to the latencies of its requests, as in published measurements."""
    return as_trace(read_tables(run).requests)


def gap_of(run: StoredRun) -> float:
    """Return the largest service difference between two clients while both wait."""
    gap = run.summary["max_service_gap"]
    return nan if gap is None else float(gap)


def as_trace(requests: Requests) -> Trace:
    """Convert a table of requests to a trace, which marks unfinished requests as refused."""
    done = requests.status == FINISHED
    return Trace(
        requests.client,
        requests.input_tokens,
        requests.output_tokens,
        requests.arrival_s,
        np.where(done, requests.first_token_s - requests.arrival_s, np.nan),
        np.where(done, requests.finish_s - requests.arrival_s, np.nan),
    )
