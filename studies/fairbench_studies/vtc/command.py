"""``fairbench reproduce vtc``: the VTC paper's figures and claims."""

from __future__ import annotations

from fairbench_studies.kit.paper_runs import Paper, listed_seeds
from fairbench_studies.vtc.claims import CLAIMS
from fairbench_studies.vtc.draw import plot
from fairbench_studies.vtc.experiments import possible
from fairbench_studies.vtc.kept import keep, recall
from fairbench_studies.vtc.store import read

VTC = Paper(
    "vtc",
    "VTC",
    3,
    CLAIMS,
    lambda: possible().values(),
    read,
    lambda seeds, output, formats: plot(seeds[0], output, formats),
    lambda seeds: f"{seeds[0].basis()}; {listed_seeds(len(seeds))}",
    keep,
    recall,
)
