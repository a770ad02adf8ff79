"""Judged claims of a paper as a Markdown table and as CSV, in one form for all papers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairbench.errors import UsageError
from fairbench_studies.kit.claim import Claim, Finding, Verdict
from fairbench_studies.kit.rows import write_rows

UNCONTENDED = "under some scheduler queues were empty, or no client was short of service"


class Judged(NamedTuple):
    """A claim, its finding, and the source of the numbers."""

    claim: Claim
    finding: Finding
    basis: str

    @property
    def cause(self) -> str:
        """The reason why the claim is not reproduced; empty if it is."""
        if self.finding.verdict is Verdict.NOT_TESTABLE and self.claim.testable:
            return UNCONTENDED
        return "" if self.finding.verdict is Verdict.REPRODUCED else self.claim.cause


def tally(judged: Sequence[Judged]) -> str:
    """Return how many claims are reproduced, such as ``**11 of 12 claims are reproduced.**``."""
    reproduced = sum(one.finding.verdict is Verdict.REPRODUCED for one in judged)
    claims = "claim" if len(judged) == 1 else "claims"
    verb = "is" if reproduced == 1 else "are"
    return f"**{reproduced} of {len(judged)} {claims} {verb} reproduced.**"


def table_lines(judged: Sequence[Judged]) -> list[str]:
    """Return a tally and a Markdown table: claim, paper, fairbench, verdict, and reasons."""
    return [
        tally(judged),
        "",
        "| # | claim | paper | here | verdict |",
        "|--:|---|---|---|---|",
        *(
            f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | {finding.ours} | "
            f"**{finding.verdict}**{_beside(finding)}{': ' if one.cause else ''}{one.cause} |"
            for one in judged
            for claim, finding in [(one.claim, one.finding)]
        ),
    ]


def _beside(finding: Finding) -> str:
    if not finding.beside:
        return ""
    return f" ({'; '.join(f'{name}: {made}' for name, made in finding.beside.items())})"


def write_claims(judged: Sequence[Judged], text: str, folder: Path, stem: str) -> list[Path]:
    """Write ``STEM.md`` with the text and ``STEM.csv`` with the claims; return the files.

    Raises UsageError if they cannot be written.
    """
    markdown, table = folder / f"{stem}.md", folder / f"{stem}.csv"
    rows = [
        {
            "number": one.claim.number,
            "claim": one.claim.text,
            "source": one.claim.source,
            "paper": one.claim.paper,
            "ours": one.finding.ours,
            "verdict": str(one.finding.verdict),
            "beside": "; ".join(f"{name}: {made}" for name, made in one.finding.beside.items()),
            "elsewhere": "; ".join(f"{a}: {b}" for a, b in one.finding.elsewhere.items()),
            "cause": one.cause,
            "figure": one.claim.figure,
            "basis": one.basis,
        }
        for one in judged
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text, encoding="utf-8")
        write_rows(table, rows)
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]
