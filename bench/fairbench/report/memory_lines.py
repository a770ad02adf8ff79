"""Lines on KV memory in the summary of a run, if it was recorded."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.report.numbers import with_unit
from fairbench.results.store import Summary

MOST = 6  # pairs of clients in lines of their own, those with the most tokens


def memory_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each line's label and text: which client lost cached tokens to which."""
    rows = summary.get("evictions")
    if rows is None:
        return
    label = "evictions"
    if not rows:
        yield label, "no client lost a cached token"
    for row in sorted(rows, key=lambda one: -one["tokens"])[:MOST]:
        other = "itself" if row["client"] == row["by"] else row["by"]
        yield label, f"{row['client']} lost {with_unit(row['tokens'], 'tokens')} to {other}"
        label = ""
    if len(rows) > MOST:
        yield "", f"and {len(rows) - MOST} more pairs with fewer tokens"
