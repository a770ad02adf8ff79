"""The verdict on a run in one line: the lowest ratio of a client's service to its fair share."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple

from fairbench.errors import printable
from fairbench.files.times import read_clock
from fairbench.metrics.contention import SLOW
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.report.client_table import number_or_mean
from fairbench.report.numbers import number, percent
from fairbench.report.result_lines import HEADLINE, NEAR_ALL, is_of_failures, share_beyond
from fairbench.report.traffic_lines import window
from fairbench.results.references import THROUGHPUT, Reference
from fairbench.results.store import Summary

WHOLE_RUN = "min_entitlement_ratio"
EQUAL = 0.005  # relative differences of throughput below this value are not reported
LONG_S = 60.0  # Shares in windows of this length are judged; a shorter run has one shorter window.
# If no request waited for this fraction of the time, the load is too small to judge the whole run.
TOO_LITTLE = 0.25


def verdict(summary: Summary, reference: Reference | None = None) -> str:
    """Return the verdict on a run, compared with another scheduler's results (``reference``)."""
    if not summary["num_programs"]:
        return ""
    shown = _of_run(summary)
    told = (
        _unshared(shown, summary) or _judged(shown, summary),
        _failed(summary),
        _under(reference, shown),
        _cost(reference, summary),
    )
    return " ".join(filter(None, told))


def repeats_verdict(combined: Summary) -> str:
    """Return the verdict on several seeds of one experiment, from means over the seeds."""
    whole_run, worst = (number_or_mean(combined.get(key)) for key in (WHOLE_RUN, HEADLINE))
    seeds = f"Mean of {len(combined['seeds'])} seeds: "
    length = f"{min(LONG_S, _window_s(combined)):.0f} s"
    return seeds + _judged(_Shares(whole_run, "", worst, "", length), combined)


class _Shares(NamedTuple):
    """The lowest ratios of service to fair share, over the run and in the worst window, or None.

    ``window_judged`` is true if the client with the lowest ratio over the run waited long enough to
    be judged in some window.
    """

    whole_run: float | None
    client: str
    worst: float | None
    whose: str
    length: str = ""
    when: str = ""
    beyond: str = ""
    window_judged: bool = True


def _of_run(summary: Summary) -> _Shares:
    rows = [row for row in summary["clients"] if row.get("entitlement_ratio") is not None]
    least = min(rows, key=lambda row: float(row["entitlement_ratio"]), default=None)
    heavy = {row["client"] for row in summary["clients"] if row["misbehaving"]}
    client = "" if least is None else _called(least["client"], heavy)
    found = _Shares(summary[WHOLE_RUN], client, None, "")
    judged = least is None or least.get("share_60s", 1) is not None
    for row in (summary.get("worst_windows") or ())[:1]:
        clock = read_clock(summary.get("began"), summary.get("window_end_s") or 0.0)
        when = f" from {window(row['start_s'], row['end_s'], clock)}"
        length = f"{row['end_s'] - row['start_s']:.0f} s"
        whose = _called(row["client"], heavy)
        more = share_beyond(row)
        beyond = f", while {more}" if more else ""
        return _Shares(*found[:2], row["share"], whose, length, when, beyond, judged)
    return found


def _called(client: str, heavy: Collection[str]) -> str:
    return f"{printable(client)}{' (heavy)' if client in heavy else ''}"


def _window_s(summary: Summary) -> float:
    """Return the length of the measured window in seconds; infinity in summaries without one."""
    start_s, end_s = (number_or_mean(summary.get(f"window_{end}_s")) for end in ("start", "end"))
    return inf if start_s is None or end_s is None else end_s - start_s


def _unshared(shown: _Shares, summary: Summary) -> str:
    """Return a sentence on a run in which no client could delay another, or ""."""
    if sum(row["programs"] > 0 for row in summary["clients"]) == 1:
        return "One client sent requests, so nothing was shared."
    low = any(one is not None and one < NEAR_ALL for one in (shown.whole_run, shown.worst))
    if low and is_of_failures(summary):
        return "Requests failed, and no client delayed another."
    return ""


def _judged(shown: _Shares, summary: Summary) -> str:
    whole_run, worst = shown.whole_run, shown.worst
    if whole_run is None:
        reason = summary.get("notes", {}).get(WHOLE_RUN, NOT_CONTENDED)
        start = f"Shares of the whole run are not judged: {reason}."
        if reason == NOT_CONTENDED:
            start = "Over the run, every client received all the service that it asked for."
        return f"{start} {_window(shown)}".rstrip()
    if whole_run < NEAR_ALL:
        return _short(whole_run, shown, summary)
    least = f"Fair over the run ({percent(min(1.0, whole_run))} of the fair share at least)"
    if worst is None:
        known = "worst_windows" in summary
        return f"{least}{NOT_LONG if known else ''}."
    every = _every(shown)
    if worst >= NEAR_ALL:
        return f"{least} and in {every} ({percent(worst)} at least)."
    who = f" for {shown.whose}{shown.when}{shown.beyond}" if shown.whose else ""
    return f"{least}, not in {every} ({percent(worst)}{who})."


def _short(whole_run: float, shown: _Shares, summary: Summary) -> str:
    who = shown.client or "the client that is worst off"
    short = f"{who} received {percent(whole_run)} of its fair share"
    if _has_too_little_load(shown, summary):
        empty = percent(number_or_mean(summary["queue_empty_share"]))
        return (
            f"Too little load to judge the whole run (no request waited for {empty} of the "
            f"window): {short}."
        )
    # A window in which this client hardly waited says nothing about this client.
    windows = "" if _is_fair_elsewhere(shown, summary) else _window(shown)
    return f"Not fair: {short} over the run. {windows}".rstrip()


def _has_too_little_load(shown: _Shares, summary: Summary) -> bool:
    """Return whether requests seldom waited, and no client was short of service in a window.

    If an engine admits every request, an overload forms no queue, but makes tokens slow.
    """
    if shown.worst is not None and shown.worst < NEAR_ALL:
        return False
    empty, slow = (
        number_or_mean(summary.get(key)) for key in ("queue_empty_share", "lone_tpot_ratio")
    )
    return empty is not None and empty > TOO_LITTLE and (slow is None or slow <= SLOW)


def _is_fair_elsewhere(shown: _Shares, summary: Summary) -> bool:
    if shown.worst is None or shown.worst < NEAR_ALL:
        return False
    return not shown.window_judged or _window_s(summary) <= LONG_S


def _failed(summary: Summary) -> str:
    """Return a sentence on failed requests, or "" if none failed."""
    failed, sent = summary.get("failed"), summary.get("num_requests")
    return f"{number(failed)} of {number(sent)} requests failed." if failed and sent else ""


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
