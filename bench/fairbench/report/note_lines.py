"""Reasons for undefined values in a run's summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fairbench.metrics.reasons import NOT_CONTENDED, TOO_FEW_REQUESTS
from fairbench.report.crowd import is_crowd, many_keys
from fairbench.results.store import Summary

NUMBER = re.compile(r"\d[\d,.]*")
SUCH = ", for example"


def notes_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the reasons for undefined values; values with equal reasons share a line.

    Values that the table does not show, or explains itself, are only in the JSON.
    """
    by_reason: dict[str, list[str]] = {}
    for key, reason in summary.get("notes", {}).items():
        if not (
            reason in (NOT_CONTENDED, TOO_FEW_REQUESTS)
            or key.endswith("_ms")
            or key.startswith(("time_to_", "goodput_late", "goodput_slack"))
            or _is_bound(key, summary)
        ):
            by_reason.setdefault(reason, []).append(key.removeprefix("clients."))
    label = "notes"
    if summary.get("token_count_method"):
        yield label, f"tokens of the data set: {summary['token_count_method']}"
        label = ""
    if is_crowd(summary):
        by_reason = _alike(by_reason)
    for reason, keys in by_reason.items():
        shown = many_keys(keys, summary) if is_crowd(summary) else keys
        yield label, f"{', '.join(shown)}: {reason}"
        label = ""


def _alike(by_reason: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Merge the keys of reasons that differ only in numbers; the first of these stands for all."""
    found: dict[str, tuple[str, list[str]]] = {}
    for reason, keys in by_reason.items():
        first, others = found.setdefault(NUMBER.sub("#", reason), (reason, []))
        others += keys
        if reason != first:
            found[NUMBER.sub("#", reason)] = (first.removesuffix(SUCH) + SUCH, others)
    return dict(found.values())


def _is_bound(key: str, summary: Summary) -> bool:
    """Return whether a note explains a missing bound, which the service gap's line does."""
    keys = ("service_gap_bound", "service_gap_bound_s", "bound_source")
    return summary["service_gap_bound"] is None and key in keys
