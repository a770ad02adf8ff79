"""Per-seed values of a sweep, from which the claims of the DLPM paper are judged.

    python studies seeds SWEEP

The script makes the sweep's missing runs in results/runs/NAME, and writes results/seeds/NAME.csv.
SWEEP is a name such as fig8, or a file such as results/tables/readings.toml.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairbench_studies.dlpm.claims.table import AUTHORS, CLAIMS, with_four
from fairbench_studies.kit.rows import ROOT
from fairbench_studies.kit.seeds import completed_cells, write_seeds

SEEDS = ROOT / "results" / "seeds"


def main(sweep: str) -> None:
    """Simulate the missing runs of a sweep, and store the values from which claims are judged."""
    name, cells = completed_cells(sweep)
    sources = with_four({name.removesuffix(f"-{AUTHORS}"): cells})
    for claim in CLAIMS:
        if claim.figure in sources:
            claim.judge(sources[claim.figure])
    path = SEEDS / f"{name}.csv"
    write_seeds(path, cells)
    sys.stdout.write(f"{Path(path).relative_to(ROOT)}\n")
