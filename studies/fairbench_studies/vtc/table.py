"""The table of the VTC paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fairbench_studies.kit.judged import Judged, table_lines, write_claims
from fairbench_studies.vtc.claims import CLAIMS
from fairbench_studies.vtc.store import Results

INTRODUCTION = (
    "# Claims of the VTC paper",
    "",
    "This page compares the claims of the VTC paper with the numbers of fairbench.",
    "",
)


def judge_vtc(results: Results, others: Sequence[Results] = ()) -> list[Judged]:
    """Judge every claim whose runs are complete.

    ``others`` holds the results of seeds 1 and up. If their verdicts differ, they follow in
    parentheses.
    """
    judged = []
    for claim in CLAIMS:
        try:
            finding = claim.judge(results)
            again = [claim.judge(other).verdict for other in others]
        except KeyError:
            continue  # a run is missing
        differ = {
            f"seed {seed}": found
            for seed, found in enumerate(again, start=1)
            if found is not finding.verdict
        }
        finding = replace(finding, beside={**finding.beside, **differ})
        judged.append(Judged(claim, finding, results.basis()))
    return judged


def missing(judged: Sequence[Judged]) -> list[int]:
    """Return the claims that could not be judged, because runs are missing."""
    found = {one.claim.number for one in judged}
    return [claim.number for claim in CLAIMS if claim.number not in found]


def vtc_markdown(judged: Sequence[Judged], basis: str, seeds: int = 1) -> str:
    """Return the table as Markdown, followed by the source of its numbers."""
    below = f"The verdicts are those of seed 0, {basis}."
    if seeds > 1:
        below += f" Seeds 1 to {seeds - 1} give the same verdicts, apart from those in parentheses."
    return "\n".join([*INTRODUCTION, *table_lines(judged), "", below]) + "\n"


def write_vtc(judged: Sequence[Judged], basis: str, folder: Path, seeds: int = 1) -> list[Path]:
    """Write ``vtc-claims.md`` and ``.csv``. Raises UsageError if they cannot be written."""
    return write_claims(judged, vtc_markdown(judged, basis, seeds), folder, "vtc-claims")
