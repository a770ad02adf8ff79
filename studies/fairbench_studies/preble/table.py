"""The table of the Preble paper's claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairbench_studies.kit.judged import Judged, table_lines, write_claims
from fairbench_studies.preble.claims import CLAIMS
from fairbench_studies.preble.store import Results

INTRODUCTION = (
    "# Claims of the Preble paper",
    "",
    "This page compares the claims of the Preble paper with the numbers of fairbench.",
    "",
)


def judge_preble(results: Results) -> list[Judged]:
    """Judge every claim."""
    return [Judged(claim, claim.judge(results), results.basis) for claim in CLAIMS]


def preble_markdown(judged: Sequence[Judged], results: Results) -> str:
    """Return the table as Markdown, followed by the source of its numbers."""
    seeds = "those of seed 0" if results.seeds == 1 else f"means of {results.seeds} seeds"
    below = f"Latencies are those of requests. Values are {seeds}, {results.basis}."
    return "\n".join([*INTRODUCTION, *table_lines(judged), "", below]) + "\n"


def write_preble(judged: Sequence[Judged], results: Results, folder: Path) -> list[Path]:
    """Write ``preble-claims.md`` and ``.csv``. Raises UsageError if they cannot be written."""
    return write_claims(judged, preble_markdown(judged, results), folder, "preble-claims")
