"""The verdict on a run in one line: the lowest ratio of a client's service to its fair share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fairbench.errors import printable
from fairbench.files.times import read_clock
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.report.client_table import number_or_mean
from fairbench.report.numbers import percent
from fairbench.report.result_lines import HEADLINE, NEAR_ALL, is_of_failures, share_beyond
from fairbench.report.traffic_lines import window
from fairbench.results.references import THROUGHPUT, Reference
from fairbench.results.store import Summary

WHOLE_RUN = "min_entitlement_ratio"
EQUAL = 0.005  # relative differences of throughput below this value are not reported


def verdict(summary: Summary, reference: Reference | None = None) -> str:
    """Return the verdict on a run, compared with another scheduler's results (``reference``)."""
    if not summary["num_programs"]:
        return ""
    shown = _of_run(summary)
    told = (_judged(shown, summary), _under(reference, shown), _cost(reference, summary))
    return " ".join(filter(None, told))


def repeats_verdict(combined: Summary) -> str:
    """Return the verdict on several seeds of one experiment, from means over the seeds."""
    whole_run, worst = (number_or_mean(combined.get(key)) for key in (WHOLE_RUN, HEADLINE))
    seeds = f"Mean of {len(combined['seeds'])} seeds: "
    return seeds + _judged(_Shares(whole_run, "", worst, "", "60 s"), {})


class _Shares(NamedTuple):
    """The lowest ratios of service to fair share, over the run and in the worst window, or None."""

    whole_run: float | None
    client: str
    worst: float | None
    whose: str
    length: str = ""
    when: str = ""
    beyond: str = ""


def _of_run(summary: Summary) -> _Shares:
    rows = [row for row in summary["clients"] if row.get("entitlement_ratio") is not None]
    least = min(rows, key=lambda row: float(row["entitlement_ratio"]), default=None)
    heavy = {row["client"] for row in summary["clients"] if row["misbehaving"]}
    client = "" if least is None else _called(least["client"], heavy)
    found = _Shares(summary[WHOLE_RUN], client, None, "")
    for row in (summary.get("worst_windows") or ())[:1]:
        clock = read_clock(summary.get("began"), summary.get("window_end_s") or 0.0)
        when = f" from {window(row['start_s'], row['end_s'], clock)}"
        length = f"{row['end_s'] - row['start_s']:.0f} s"
        whose = _called(row["client"], heavy)
        more = share_beyond(row)
        beyond = f", while {more}" if more else ""
        return _Shares(*found[:2], row["share"], whose, length, when, beyond)
    return found


def _called(client: str, heavy: Collection[str]) -> str:
    return f"{printable(client)}{' (heavy)' if client in heavy else ''}"


def _judged(shown: _Shares, summary: Mapping[str, Any]) -> str:
    whole_run, worst = shown.whole_run, shown.worst
    if summary and sum(row["programs"] > 0 for row in summary["clients"]) == 1:
        return "One client sent requests, so nothing was shared."
    low = any(one is not None and one < NEAR_ALL for one in (whole_run, worst))
    if low and summary and is_of_failures(summary):
        return "Requests failed, and no client delayed another."
    if whole_run is None:
        reason = summary.get("notes", {}).get(WHOLE_RUN, NOT_CONTENDED)
        start = f"Shares of the whole run are not judged: {reason}."
        if reason == NOT_CONTENDED:
            start = "Over the run, every client received all the service that it asked for."
        return f"{start} {_window(shown)}".rstrip()
    if whole_run < NEAR_ALL:
        who = shown.client or "the client that is worst off"
        start = f"Not fair: {who} received {percent(whole_run)} of its fair share over the run."
        return f"{start} {_window(shown)}".rstrip()
    least = f"Fair over the run ({percent(min(1.0, whole_run))} of the fair share at least)"
    if worst is None:
        known = "worst_windows" in summary
        return f"{least}{NOT_LONG if known else ''}."
    every = _every(shown)
    if worst >= NEAR_ALL:
        return f"{least} and in {every} ({percent(worst)} at least)."
    who = f" for {shown.whose}{shown.when}{shown.beyond}" if shown.whose else ""
    return f"{least}, not in {every} ({percent(worst)}{who})."


NOT_LONG = "; no client waited long enough to judge parts of it"


def _every(shown: _Shares) -> str:
    return "every minute" if shown.length == "60 s" else f"every {shown.length}"


def _window(shown: _Shares) -> str:
    if shown.worst is None:
        return ""
    if shown.worst >= NEAR_ALL:
        return f"In {_every(shown)}, waiting clients received at least {percent(shown.worst)}."
    who = shown.whose or "a client"
    return (
        f"In the worst {shown.length}{shown.when}, {who} received {percent(shown.worst)}"
        f"{shown.beyond}."
    )


def _under(reference: Reference | None, shown: _Shares) -> str:
    if reference is None:
        return ""
    length = shown.length or "60 s"
    whole_run = reference.values.get(WHOLE_RUN)
    worst = reference.values.get(f"min_share_{length.removesuffix(' s')}s")
    texts = [] if whole_run is None else [f"{percent(whole_run)} over the run"]
    texts += [] if worst is None else [f"{percent(worst)} in the worst {length}"]
    if not texts:
        return f"Under {reference.scheduler}, no client would be short of service."
    return f"Under {reference.scheduler}, the lowest share would be {' and '.join(texts)}."


def _cost(reference: Reference | None, summary: Summary) -> str:
    """Return a sentence that compares the throughput with the reference scheduler's.

    The sentence is "" if a throughput is unknown.
    """
    if reference is None:
        return ""
    here, there = summary.get(THROUGHPUT), reference.values.get(THROUGHPUT)
    if not here or not there:
        return ""
    change = here / there - 1
    if abs(change) < EQUAL:
        return f"Throughput is that of {reference.scheduler}."
    word = "higher" if change > 0 else "lower"
    return f"Throughput is {percent(abs(change))} {word} than under {reference.scheduler}."
