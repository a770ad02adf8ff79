"""Why something in a run's summary has no value."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.metrics.reasons import NOT_CONTENDED, TOO_FEW_REQUESTS
from fairbench.report.crowd import is_crowd, many_keys
from fairbench.results.store import Summary


def notes_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Why something has no value; what has none for the same reason shares a line.

    What the table does not show, or explains where it stands, is only in the JSON.
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
        yield label, f"tokens of the real input: {summary['token_count_method']}"
        label = ""
    for reason, keys in by_reason.items():
        shown = many_keys(keys, summary) if is_crowd(summary) else keys
        yield label, f"{', '.join(shown)}: {reason}"
        label = ""


def _is_bound(key: str, summary: Summary) -> bool:
    """Whether a note says why there is no bound at all, as the line of the service gap does."""
    keys = ("service_gap_bound", "service_gap_bound_s", "bound_source")
    return summary["service_gap_bound"] is None and key in keys
