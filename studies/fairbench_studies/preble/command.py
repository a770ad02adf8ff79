"""``fairbench reproduce preble``: the Preble paper's figures and claims."""

from __future__ import annotations

from fairbench_studies.kit.paper_runs import Paper
from fairbench_studies.preble.claims import CLAIMS
from fairbench_studies.preble.draw import plot
from fairbench_studies.preble.experiments import experiments
from fairbench_studies.preble.kept import keep, recall
from fairbench_studies.preble.store import Results, read

PREBLE = Paper(
    "preble",
    "Preble",
    3,
    CLAIMS,
    lambda: experiments().values(),
    read,
    plot,
    Results.origin,
    keep,
    recall,
)
