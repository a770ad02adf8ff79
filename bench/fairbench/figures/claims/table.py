"""The table of all claims: claim, paper, ours, verdict, and why where it is not reproduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairbench.figures.claims import (
    conversations,
    fairness,
    mix,
    quanta,
    scaling,
    throughput,
    trees,
)
from fairbench.figures.claims.claim import Claim, Finding
from fairbench.figures.claims.judged import Judged, table_lines, write_claims
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

MAP = "claims-map.md"  # what ``map_table`` writes
RULE = (
    "A place (workload, scenario and replicas) counts if clients competed there under every "
    "scheduler compared: on average over the seeds queues were not empty for more than 5% of the "
    "window, and someone was short of service. A claim holds in a place if the 95% interval of the "
    "difference, paired by seed, lies on its side, is reversed if it lies on the other, and cannot "
    "be told otherwise, which counts for neither (of one seed the difference alone decides). The "
    "shape is there if it holds in four fifths of the places. Verdicts in brackets are by other "
    "measures than the paper's. Where claims do not hold, or nothing was contended:"
)


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
        *table_lines(judged),
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


def _elsewhere(finding: Finding) -> list[str]:
    """By which measures a claim does not hold where; those that agree in one line."""
    found: dict[str, list[str]] = {}
    for name, places in finding.elsewhere.items():
        found.setdefault(places, []).append(name)
    return [f"{', '.join(names)}: {places}" for places, names in found.items()]


def write(judged: Sequence[Judged], folder: Path) -> list[Path]:
    """Write ``claims.md`` and ``claims.csv``. Raises UsageError if they cannot be written."""
    text = claims_markdown(judged)
    if (folder / MAP).exists():
        text += f"\nWhere each claim holds when settings change: [{MAP}]({MAP})\n"
    return write_claims(judged, text, folder, "claims")
