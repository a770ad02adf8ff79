"""The table of the VTC paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairbench.figures.claims.judged import Judged, table_lines, write_claims
from fairbench.figures.vtc.claims import CLAIMS
from fairbench.figures.vtc.store import Results


def judge_vtc(results: Results) -> list[Judged]:
    """Every claim whose runs are all there."""
    judged = []
    for claim in CLAIMS:
        try:
            judged.append(Judged(claim, claim.judge(results), results.basis()))
        except KeyError:
            continue  # a run is missing
    return judged


def missing(judged: Sequence[Judged]) -> list[int]:
    """The claims that could not be judged."""
    found = {one.claim.number for one in judged}
    return [claim.number for claim in CLAIMS if claim.number not in found]


def vtc_markdown(judged: Sequence[Judged], basis: str) -> str:
    """The table, and under it what its numbers are of."""
    return "\n".join([*table_lines(judged), "", f"Of seed 0, {basis}."]) + "\n"


def write_vtc(judged: Sequence[Judged], basis: str, folder: Path) -> list[Path]:
    """Write ``vtc-claims.md`` and ``.csv``. Raises UsageError if they cannot be written."""
    return write_claims(judged, vtc_markdown(judged, basis), folder, "vtc-claims")
