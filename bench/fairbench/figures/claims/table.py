"""The table of all claims: claim, paper, ours, verdict, and why where it is not reproduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.figures.catalogue import write_rows
from fairbench.figures.claims import (
    conversations,
    fairness,
    mix,
    quanta,
    scaling,
    throughput,
    trees,
)
from fairbench.figures.claims.claim import Claim, Finding, Verdict
from fairbench.figures.fig4 import Timings
from fairbench.figures.provenance import provenance

CLAIMS: Sequence[Claim] = sorted(
    (
        *throughput.CLAIMS,
        *fairness.CLAIMS,
        *conversations.CLAIMS,
        *trees.CLAIMS,
        *mix.CLAIMS,
        *quanta.CLAIMS,
        *scaling.CLAIMS,
    ),
    key=lambda claim: claim.number,
)

UNCONTENDED = "under some scheduler queues were empty, or no client was short of service"
MAP = "claims-map.md"  # what ``map_table`` writes
RULE = (
    "A place (workload, scenario and replicas) counts if clients competed there under every "
    "scheduler compared: queues were not empty for more than 5% of the window, and someone was "
    "short of service. A claim holds in a place if the 95% interval of the difference, paired by "
    "seed, lies on its side, is reversed if it lies on the other, and cannot be told otherwise, "
    "which counts for neither (of one seed the difference alone decides). The shape is there if it "
    "holds in four fifths of the places. Verdicts in brackets are by other measures than the "
    "paper's. Where claims do not hold, or nothing was contended:"
)


class Judged(NamedTuple):
    """A claim, what was found, and what the numbers are of."""

    claim: Claim
    finding: Finding
    basis: str

    @property
    def cause(self) -> str:
        """Why it is not reproduced; empty if it is."""
        if self.finding.verdict is Verdict.NOT_TESTABLE and self.claim.testable:
            return UNCONTENDED
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
    """The table; under it how a place is judged, where claims do not hold, and provenance."""
    lines = [
        "| # | claim | paper | here | verdict |",
        "|--:|---|---|---|---|",
        *(
            f"| {claim.number} | {claim.text} ({claim.source}) | {claim.paper} | "
            f"{one.finding.ours} | **{one.finding.verdict}**{_beside(one.finding)}"
            f"{': ' if one.cause else ''}{one.cause} |"
            for one in judged
            for claim in [one.claim]
        ),
        "",
        RULE,
        "",
        *(f"- {one.claim.number}, {line}" for one in judged for line in _elsewhere(one.finding)),
        "",
        *(
            f"- {figure}: {basis}"
            for figure, basis in dict.fromkeys((one.claim.figure, one.basis) for one in judged)
        ),
    ]
    return "\n".join(lines) + "\n"


def _beside(finding: Finding) -> str:
    if not finding.beside:
        return ""
    return f" ({'; '.join(f'{name}: {made}' for name, made in finding.beside.items())})"


def _elsewhere(finding: Finding) -> list[str]:
    """By which measures a claim does not hold where; those that agree in one line."""
    found: dict[str, list[str]] = {}
    for name, places in finding.elsewhere.items():
        found.setdefault(places, []).append(name)
    return [f"{', '.join(names)}: {places}" for places, names in found.items()]


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
        text = claims_markdown(judged)
        if (folder / MAP).exists():
            text += f"\nWhere each claim holds when settings change: [{MAP}]({MAP})\n"
        markdown.write_text(text, encoding="utf-8")
        write_rows(table, rows)
    except OSError as error:
        raise UsageError(f"claims_dir {folder}: cannot be written: {error.strerror}") from None
    return [markdown, table]
