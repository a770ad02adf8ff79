"""Fairness over time as lines of a run's summary: the worst windows."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.report.numbers import percent, whole
from fairbench.results.store import Summary

HEADLINE = "min_share_60s"
NEAR_ALL = 0.9  # of a fair share: what looks fair
LITTLE = 0.75  # of it in the worst window: then the whole run's share misleads


def window_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the worst window, and a warning if the share of the whole run hides it.

    The longest that is judged: shorter ones are worse under every scheduler. Summaries that older
    versions stored have none.
    """
    for row in summary.get("worst_windows", ())[:1]:
        length = f"worst {row['end_s'] - row['start_s']:.0f} s"
        yield (
            length,
            f"{percent(row['share'])} of its max-min fair share: {row['client']}, from "
            f"{whole(row['start_s'])} to {whole(row['end_s'])} s{_cause(row)}",
        )
    if is_hidden_burst(summary):
        yield (
            "burst",
            "some clients waited long and were served later; the share of the whole run hides this",
        )


def is_hidden_burst(summary: Summary) -> bool:
    """Return whether shares of the whole run look fair although some window was unfair."""
    whole_run, worst = summary["min_entitlement_ratio"], summary.get(HEADLINE)
    return bool(
        whole_run is not None and worst is not None and whole_run >= NEAR_ALL and worst < LITTLE
    )


def _cause(row: dict[str, object]) -> str:
    heavy = row["heavy_client"]
    return f"; {heavy} had the most above its own share" if heavy else ""
