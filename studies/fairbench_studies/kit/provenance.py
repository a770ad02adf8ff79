"""Captions that say how a figure's runs were made: simulated or measured, hardware, and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairbench.results.comparison import SchedulerResults, seed_text
from fairbench.results.significance import METHOD
from fairbench.results.summary import basis


def provenance(cells: Sequence[SchedulerResults]) -> str:
    """Return a caption such as ``simulated on PROFILE; seeds 0 to 2, mean and 95% interval``."""
    return origin_of([run.summary for cell in cells for run in cell.runs])


def of_first_runs(cells: Sequence[SchedulerResults]) -> str:
    """Return the caption for a figure that shows only the first run of each configuration."""
    return origin_of([cell.runs[0].summary for cell in cells])


def origin_of(summaries: Sequence[Any]) -> str:
    """Return the caption for the runs of the given summaries: hardware and seeds."""
    bases = "; ".join(sorted({basis(summary) for summary in summaries}))
    seeds = sorted({summary["seed"] for summary in summaries})
    return f"{bases}; {seed_text(seeds)}" + (f", {METHOD}" if len(seeds) > 1 else "")
