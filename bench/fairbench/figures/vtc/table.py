"""The table of the VTC paper's claims: measured, here, verdict, and why where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairbench.errors import UsageError
from fairbench.figures.catalogue import write_rows
from fairbench.figures.claims.claim import Claim, Finding, Verdict
from fairbench.figures.vtc.claims import CLAIMS
from fairbench.figures.vtc.store import Results

STEM = "vtc-claims"


class Judged(NamedTuple):
    """A claim and what was found."""

    claim: Claim
    finding: Finding

    @property
    def cause(self) -> str:
        """Why it is not reproduced; empty if it is."""
        return "" if self.finding.verdict is Verdict.REPRODUCED else self.claim.cause


def judge_vtc(results: Results) -> list[Judged]:
    """Every claim whose runs are all there."""
    judged = []
    for claim in CLAIMS:
        try:
            judged.append(Judged(claim, claim.judge(results)))
        except KeyError:
            continue  # a run is missing
    return judged


def missing(judged: Sequence[Judged]) -> list[int]:
    """The claims that could not be judged."""
    found = {one.claim.number for one in judged}
    return [claim.number for claim in CLAIMS if claim.number not in found]


def vtc_markdown(judged: Sequence[Judged], basis: str) -> str:
    """The table, and under it what its numbers are of."""
    lines = [
        "| # | claim | paper | here | verdict |",
        "|--:|---|---|---|---|",
        *(
            f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | {finding.ours} | "
            f"**{finding.verdict}**{': ' if one.cause else ''}{one.cause} |"
            for one in judged
            for claim, finding in [one]
        ),
        "",
        f"Of seed 0, {basis}.",
    ]
    return "\n".join(lines) + "\n"


def write_vtc(judged: Sequence[Judged], basis: str, folder: Path) -> list[Path]:
    """Write ``vtc-claims.md`` and ``.csv``. Raises UsageError if they cannot be written."""
    markdown, table = folder / f"{STEM}.md", folder / f"{STEM}.csv"
    rows = [
        {
            "number": one.claim.number,
            "claim": one.claim.text,
            "source": one.claim.source,
            "paper": one.claim.paper,
            "ours": one.finding.ours,
            "verdict": str(one.finding.verdict),
            "cause": one.cause,
            "basis": basis,
        }
        for one in judged
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(vtc_markdown(judged, basis), encoding="utf-8")
        write_rows(table, rows)
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]
