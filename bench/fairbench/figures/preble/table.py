"""The table of the Preble paper's claims: the paper, here, verdict, and why where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fairbench.errors import UsageError
from fairbench.figures.catalogue import write_rows
from fairbench.figures.claims.claim import Claim, Finding, Verdict
from fairbench.figures.preble.claims import CLAIMS
from fairbench.figures.preble.store import Results

STEM = "preble-claims"


class Judged(NamedTuple):
    """A claim and what was found."""

    claim: Claim
    finding: Finding

    @property
    def cause(self) -> str:
        """Why it is not reproduced; empty if it is."""
        return "" if self.finding.verdict is Verdict.REPRODUCED else self.claim.cause


def judge_preble(results: Results) -> list[Judged]:
    """Every claim."""
    return [Judged(claim, claim.judge(results)) for claim in CLAIMS]


def preble_markdown(judged: Sequence[Judged], results: Results) -> str:
    """The table, and under it what its numbers are of."""
    lines = ["| # | claim | paper | here | verdict |", "|--:|---|---|---|---|"]
    for claim, finding in judged:
        why = "" if finding.verdict is Verdict.REPRODUCED else f": {claim.cause}"
        lines.append(
            f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | {finding.ours} | "
            f"**{finding.verdict}**{why} |"
        )
    seeds = "seed 0" if results.seeds == 1 else f"means of {results.seeds} seeds"
    return "\n".join([*lines, "", f"Latency is of requests; {seeds}, {results.basis}."]) + "\n"


def write_preble(judged: Sequence[Judged], results: Results, folder: Path) -> list[Path]:
    """Write ``preble-claims.md`` and ``.csv``. Raises UsageError if they cannot be written."""
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
            "basis": results.basis,
        }
        for one in judged
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(preble_markdown(judged, results), encoding="utf-8")
        write_rows(table, rows)
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]
