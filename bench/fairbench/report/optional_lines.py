"""Lines of a run's summary that not every run has: tenants, goodput, windows, evictions."""

from __future__ import annotations

from collections.abc import Iterator

from fairbench.files.times import read_clock
from fairbench.metrics.metric import Form
from fairbench.report.numbers import number, percent, with_unit, written
from fairbench.report.traffic_lines import Shortfall, window
from fairbench.results.store import Summary

MOST_TENANTS = 10  # limit on tenants with their own lines; those with the smallest shares are shown


def tenant_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each line's label and text."""
    yield (
        "tenants",
        f"minimum fair share among siblings {written(summary, 'tree_worst_share')}; Jain "
        f"index of the top-level tenants {written(summary, 'tree_jain_index')}",
    )
    known = [row for row in summary["tenants"] if row["tree_share"] is not None]
    rows = sorted(known, key=lambda row: float(row["tree_share"]))
    rows += [row for row in summary["tenants"] if row["tree_share"] is None]
    for row in rows[:MOST_TENANTS]:
        weight = f", weight {number(row['weight'])}" if row["weight"] != 1 else ""
        yield (
            "",
            f"{row['tenant']} {written(row, 'tree_share', Form.PERCENT)} of its share: "
            f"{with_unit(row['service_rate_tok_s'], 'tok/s')} of service "
            f"({number(row['clients'])} clients{weight})",
        )
    if len(rows) > MOST_TENANTS:
        yield "", f"and {number(len(rows) - MOST_TENANTS)} with larger shares"


def goodput_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each goodput line's label and text."""
    yield (
        "goodput",
        f"{written(summary, 'goodput_ratio')} of the requests met their targets (worst "
        f"client {written(summary, 'goodput_min_ratio')}): "
        f"{number(summary.get('goodput_req_s'))} requests/s, "
        f"{with_unit(summary.get('goodput_tok_s'), 'tok/s')} of service",
    )
    yield (
        "",
        f"Jain index {written(summary, 'goodput_jain_index')} of goodput; minimum fair "
        f"share of goodput {written(summary, 'goodput_worst_share')}; "
        f"{written(summary, 'goodput_wasted_ratio')} of all computed tokens were for "
        "requests that missed their targets",
    )
    classes = [
        f"{row['class']} {written(row, 'goodput_ratio')}"
        for row in summary.get("goodput_classes", ())
    ]
    if classes:
        yield "", f"on time by class: {', '.join(classes)}"


ALL_SERVED = "every client that had to wait received at least its max-min fair share"
HEADLINE = "min_share_60s"
NEAR_ALL = 0.9  # fraction of a fair share from which on a client looks fairly served
LITTLE = 0.75  # fraction in the worst window below which the whole run's share misleads


def window_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the worst window, and a warning if the share of the whole run hides it.

    The window has the longest judged length, because shorter windows are worse under every
    scheduler. Summaries that older versions stored have no windows.
    """
    clock = read_clock(summary.get("began"), summary.get("window_end_s") or 0.0)
    for row in summary["worst_windows"][:1]:
        length = f"worst {row['end_s'] - row['start_s']:.0f} s"
        if row["share"] >= 1:
            yield length, f"{ALL_SERVED}; shorter backlogs are not judged"
            continue
        yield (
            length,
            f"{percent(row['share'])} of its max-min fair share: {row['client']}, from "
            f"{window(row['start_s'], row['end_s'], clock)}"
            f"{_cause(row, summary)}",
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


def shortfall_of(summary: Summary) -> Shortfall | None:
    """Return the worst window if a well-behaved client received little in it."""
    heavy = {row["client"] for row in summary["clients"] if row["misbehaving"]}
    rows = summary["worst_windows"][:1]
    if not rows or rows[0]["share"] >= LITTLE or is_of_failures(summary):
        return None
    keys = ("client", "share", "start_s", "end_s")
    found = Shortfall(*(rows[0][key] for key in keys))
    return None if found.client in heavy else found


IDLE = 0.99  # fraction of the time with empty queues above which no other client delayed a request


def is_of_failures(summary: Summary) -> bool:
    """Return whether shares fell because requests failed, since hardly any request ever waited."""
    lost = summary.get("failed", 0) + summary.get("refused", 0)
    return bool(lost) and (summary.get("queue_empty_share") or 0) >= IDLE


def _cause(row: dict[str, object], summary: Summary) -> str:
    if is_of_failures(summary):
        return "; its requests failed, and no client delayed it"
    heavy = row["heavy_client"]
    return f"; {heavy} had the most above its own share" if heavy else ""


# limit on pairs of clients with their own lines; those with the most tokens are shown
MOST_PAIRS = 6


def memory_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield each line's label and text: which client lost cached tokens to which."""
    rows = summary["evictions"]
    label = "evictions"
    if not rows:
        yield label, "no client lost a cached token"
    for row in sorted(rows, key=lambda one: -one["tokens"])[:MOST_PAIRS]:
        other = "itself" if row["client"] == row["by"] else row["by"]
        yield label, f"{row['client']} lost {with_unit(row['tokens'], 'tokens')} to {other}"
        label = ""
    if len(rows) > MOST_PAIRS:
        yield "", f"and {len(rows) - MOST_PAIRS} more pairs with fewer tokens"
