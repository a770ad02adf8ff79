"""Tuning trials of the frontier study's scheduler pairs, and the rule that chooses a trial.

    fairbench sweep results/tables/frontier-tuning.toml
    python studies frontier-tuning results/runs/frontier-tuning [PRESET]

The script writes results/frontier-tuning.csv, with a row per trial. A row has geometric means over
the development configurations: the time to 90% completion and the well-behaved clients' P95
latency.

The rule considers the trials of a scheduler pair that finish 90% of the programs nearly as early as
the pair's fastest trial. Among these trials, the rule chooses the trial with the lowest P95
latency. frozen.toml stores each pair's chosen trial. With a PRESET such as dlpm-paper, file names
end in PRESET.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from fairbench.config import identity
from fairbench.config.sweep import points, read_sweep
from fairbench.results.store import SweepStore
from fairbench_studies.frontier.frozen import frozen
from fairbench_studies.kit.rows import ROOT, write_rows

NAME = "frontier-tuning"


class Trial(NamedTuple):
    """A scheduler pair and its settings, which the study tries in all configurations.

    A ``max_running_requests`` of 0 means the workload's limit; a ``quantum`` of 0 means the
    default.
    """

    pair: str
    max_running_requests: int
    quantum: int


class Means(NamedTuple):
    """Geometric means over the configurations: time to 90% completion, and P95 latency, in s."""

    to_90_s: float
    p95_s: float


def trials(folder: Path, name: str) -> dict[Trial, Means]:
    """Return the results of all trials of a sweep."""
    sweep = read_sweep(str(ROOT / f"results/tables/{name}.toml"))
    stored = SweepStore(Path(folder)).finished()
    found: dict[Trial, list[Any]] = defaultdict(list)
    for grid in sweep.grid:
        quantum = grid.get("dlpm.quantum") or grid.get("dlpm-hold.quantum") or 0
        for spec in points(sweep.model_copy(update={"grid": [grid]})):
            limit = spec.settings["engine.max_running_requests"]
            found[Trial(spec.scheduler, limit, quantum)].append(stored[identity(spec)].summary)
    return {trial: _means(summaries) for trial, summaries in found.items()}


def _means(summaries: list[Any]) -> Means:
    return Means(
        geometric_mean([one["time_to_90pct_s"] or one["duration"] for one in summaries]),
        geometric_mean([one["victim_p95_s"] for one in summaries]),
    )


def chosen(found: dict[Trial, Means], margin: float) -> dict[str, Trial]:
    """Return each scheduler pair's trial with the lowest P95 latency among its fastest trials."""
    best: dict[str, Trial] = {}
    for pair in dict.fromkeys(trial.pair for trial in found):
        own = {trial: means for trial, means in found.items() if trial.pair == pair}
        soonest = min(means.to_90_s for means in own.values())
        near = [trial for trial, means in own.items() if means.to_90_s * (1 - margin) <= soonest]
        best[pair] = min(near, key=lambda trial: own[trial].p95_s)
    return best


def main(folder: str, preset: str | None = None) -> None:
    """Read the runs in ``folder``, and write a CSV file with a row per tuning trial."""
    name = f"{NAME}-{preset}" if preset else NAME
    found = trials(Path(folder), name)
    picked = chosen(found, frozen(preset).margin)
    rows = [
        {
            **trial._asdict(),
            **{key: f"{value:.5g}" for key, value in means._asdict().items()},
            "chosen": int(picked[trial.pair] == trial),
        }
        for trial, means in found.items()
    ]
    write_rows(ROOT / f"results/{name}.csv", rows)
