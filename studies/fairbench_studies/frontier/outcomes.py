"""The outcomes of the frontier study's finished runs, by configuration and scheduler pair."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fairbench.results.store import StoredRun
from fairbench_studies.frontier.compare import Outcomes
from fairbench_studies.frontier.frozen import Cell, Configuration
from fairbench_studies.frontier.measures import (
    Measured,
    Outcome,
    Samples,
    bounds,
    limit_curve,
    measured,
    victims,
)
from fairbench_studies.frontier.runs import Point


def outcomes(runs: Mapping[Point, StoredRun]) -> Outcomes:
    """Return the outcome of each scheduler pair in each configuration.

    Raises DataError if a run cannot be read.
    """
    best: dict[tuple[Cell, int], float] = defaultdict(float)
    for point, run in runs.items():
        key = point.cell, point.seed
        best[key] = max(best[key], run.summary["service_rate_tok_s"])
    # Latencies are cached by run, because several scheduler pairs may share a run.
    latencies: dict[str, Samples] = {}
    found: dict[Cell, dict[Configuration, list[tuple[int, Measured, StoredRun]]]] = {}
    for point in sorted(runs, key=lambda one: one.seed):
        run = runs[point]
        latencies.setdefault(str(run.path), victims(run))
        one = measured(run.summary, best[point.cell, point.seed])
        here = found.setdefault(point.cell, {})
        here.setdefault(point.configuration, []).append((point.seed, one, run))
    return {
        cell: {
            configuration: Outcome(
                {seed: one for seed, one, _ in of},
                [latencies[str(run.path)] for _, _, run in of],
                frozenset().union(*(bounds(run.summary) for _, _, run in of)),
                # All runs of a configuration have the same load and so the same ``limit_curve``.
                () if number else limit_curve(of[0][2]),
            )
            for number, (configuration, of) in enumerate(here.items())
        }
        for cell, here in found.items()
    }


def of_part(found: Outcomes, part: str) -> Outcomes:
    """Return the outcomes of the configurations of ``part`` (development or test)."""
    return {cell: here for cell, here in found.items() if cell.part == part}
