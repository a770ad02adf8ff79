"""The table of all claims: claim, paper, ours, verdict, and why where it is not reproduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.figures.catalogue import write_rows
from fairbench.figures.claims import fairness, over_time, quanta, scaling, throughput
from fairbench.figures.claims.claim import Claim, Finding, Verdict
from fairbench.figures.fig4 import Timings
from fairbench.figures.provenance import provenance

CLAIMS: Sequence[Claim] = sorted(
    (
        *throughput.CLAIMS,
        *fairness.CLAIMS,
        *over_time.CLAIMS,
        *quanta.CLAIMS,
        *scaling.CLAIMS,
    ),
    key=lambda claim: claim.number,
)


class Judged(NamedTuple):
    """A claim, what was found, and what the numbers are of."""

    claim: Claim
    finding: Finding
    basis: str

    @property
    def cause(self) -> str:
        """Why it is not reproduced; empty if it is."""
        return "" if self.finding.verdict is Verdict.REPRODUCED else self.claim.cause


def judge_all(sources: Mapping[str, Any]) -> list[Judged]:
    """Every claim, by what its figure is drawn from."""
    return [
        Judged(claim, claim.judge(sources[claim.figure]), _basis(sources[claim.figure]))
        for claim in CLAIMS
    ]


def _basis(source: Any) -> str:
    if isinstance(source, Timings):
        return f"measured on {source.host}; decode step simulated on {source.timing_profile}"
    return provenance(source)


def claims_markdown(judged: Sequence[Judged]) -> str:
    """The table, and under it what each figure's numbers are of."""
    lines = [
        "| # | claim | paper | here | verdict |",
        "|--:|---|---|---|---|",
        *(
            f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | {finding.ours} | "
            f"**{finding.verdict}**{': ' if one.cause else ''}{one.cause} |"
            for one in judged
            for claim, finding in [(one.claim, one.finding)]
        ),
        "",
        *(
            f"- {figure}: {basis}"
            for figure, basis in dict.fromkeys((one.claim.figure, one.basis) for one in judged)
        ),
    ]
    return "\n".join(lines) + "\n"


def write(judged: Sequence[Judged], folder: Path) -> list[Path]:
    """Write ``claims.md`` and ``claims.csv``. Raises UsageError if they cannot be written."""
    markdown, table = folder / "claims.md", folder / "claims.csv"
    rows = [
        {
            "number": one.claim.number,
            "claim": one.claim.text,
            "source": one.claim.source,
            "paper": one.claim.paper,
            "ours": one.finding.ours,
            "verdict": str(one.finding.verdict),
            "cause": one.cause,
            "figure": one.claim.figure,
            "basis": one.basis,
        }
        for one in judged
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        markdown.write_text(claims_markdown(judged), encoding="utf-8")
        write_rows(table, rows)
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]
