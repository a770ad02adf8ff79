"""The latencies of the well-behaved clients of stored runs, as a distribution."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.client_samples import samples
from fairbench.metrics.latency import Sample, pooled
from fairbench.metrics.records import Floats, Window
from fairbench.results.comparison import ComparedRun, SchedulerResults
from fairbench.results.run_facts import stored_facts
from fairbench.results.run_tables import read_tables


def distribution(cell: SchedulerResults) -> tuple[Floats, Floats] | None:
    """Return ascending latencies in seconds, and the percentage that is at most as long.

    None where no run is on disk, or nothing finished. Latencies that are not known count in the
    total, so that the last percentage is below 100 then.
    """
    found = [sample for run in cell.runs if run.run.path.is_dir() for sample in _well_behaved(run)]
    if not found or not sum(len(one.known_s) for one in found):
        return None
    together = pooled(found)
    ascending = np.sort(together.known_s)
    return ascending, 100.0 * np.arange(1, len(ascending) + 1) / together.n


def _well_behaved(run: ComparedRun) -> list[Sample]:
    tables = read_tables(run.run)
    window = Window(run.summary["window_start_s"], run.summary["window_end_s"])
    facts = stored_facts(run.run, window)
    each = samples(tables.requests, tables.programs, facts)
    return [
        sample for client, sample in zip(facts.clients, each, strict=True) if not client.misbehaving
    ]
