"""Per-seed values of a sweep for the claims of the DLPM paper.

    python studies seeds SWEEP

The script runs what the sweep lacks in results/runs/NAME, and writes results/seeds/NAME.csv. SWEEP
is a name such as fig8, or a file such as results/tables/readings.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairbench.config.sweep import read_sweep
from fairbench.execute.places import LOCAL, executor_named
from fairbench.execute.tasks import run_context
from fairbench.results.comparison import SchedulerResults, compare_sweep
from fairbench_studies.dlpm.claims.table import CLAIMS
from fairbench_studies.kit.rows import ROOT
from fairbench_studies.kit.seeds import keeping, write_seeds
from fairbench_studies.kit.store import filling

RUNS, SEEDS = ROOT / "results" / "runs", ROOT / "results" / "seeds"


def completed(sweep: str) -> tuple[str, list[SchedulerResults]]:
    """Run what a sweep lacks; return the sweep's name, and its cells with runs that keep values."""
    read = read_sweep(sweep)
    folder = RUNS / read.name
    with run_context(None, executor_named(LOCAL)) as context:
        failures = filling(read, folder).run(context)
        if context.interrupted() or failures:
            raise SystemExit(
                f"{folder}: {len(failures)} runs failed, or the script was interrupted"
            )
    return read.name, keeping(compare_sweep(folder))


def main(sweep: str) -> None:
    """Complete the sweep, derive the values that its claims need, and write the file."""
    name, cells = completed(sweep)
    for claim in CLAIMS:
        if claim.figure == name.partition("-")[0]:
            claim.judge(cells)
    path = SEEDS / f"{name}.csv"
    write_seeds(path, cells)
    sys.stdout.write(f"{Path(path).relative_to(ROOT)}\n")
