"""The lines of a run's summary: one line per topic, with numbers over all clients, and notes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil, isclose
from typing import Any

from fairbench.errors import printable
from fairbench.files.times import ClockTime, read_clock
from fairbench.metrics.catalogue import CATALOGUE, REQUEST_LATENCIES, columns_of
from fairbench.metrics.contention import hides_backlog
from fairbench.metrics.metric import Display, Form
from fairbench.metrics.reasons import NOT_CONTENDED, QUEUE_ESTIMATED, TOO_FEW_REQUESTS
from fairbench.metrics.service import WARN_ABOVE
from fairbench.metrics.shown_percentiles import (
    ENOUGH,
    P95,
    P99,
    chosen_percentiles,
    is_carried,
    is_few,
)
from fairbench.report.client_table import FEW, is_crowd, is_weighted, many_keys
from fairbench.report.limit_lines import limit_lines
from fairbench.report.numbers import (
    latency,
    more_than,
    number,
    percent,
    whole,
    with_unit,
    written,
)
from fairbench.report.traffic_lines import Shortfall, window
from fairbench.results.store import Summary

MOST_TENANTS = 10  # At most this number of tenants is printed, the smallest shares first.


def tenant_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) on the fair shares of tenants."""
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
    """Yield lines (label, text) on goodput."""
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


ALL_SERVED = "every client that had to wait received at least its fair share"
HEADLINE = "min_share_60s"
NEAR_ALL = 0.9  # A client counts as fairly served above this fraction of its fair share.


def window_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield a line on the worst time window, and on the waits of the client that it hurts.

    Only windows of the longest length are used, because every scheduler looks unfair to some client
    in shorter windows.
    """
    clock = read_clock(summary.get("began"), summary.get("window_end_s") or 0.0)
    for row in summary["worst_windows"][:1]:
        length = f"worst {row['end_s'] - row['start_s']:.0f} s"
        if row["share"] >= 1:
            yield length, f"{ALL_SERVED}; shorter backlogs are not judged"
            continue
        more = share_beyond(row)
        cause = f", while {more} of its own" if more else ""
        if is_of_failures(summary):
            cause = "; its requests failed, and no client delayed it"
        elif waited := waits_of(row, summary):
            cause = f"; its {waited}"
        yield (
            length,
            f"{printable(row['client'])} received {percent(row['share'])} of its fair share from "
            f"{window(row['start_s'], row['end_s'], clock)}{cause}",
        )


def share_beyond(row: Mapping[str, Any]) -> str:
    """Say which client received most beyond its share in a window, or "" if none did.

    ``row`` is an element of the summary's ``worst_windows``. Older summaries lack ``heavy_share``.
    """
    heavy, share = row.get("heavy_client"), row.get("heavy_share")
    return f"{printable(heavy)} received {percent(share)}" if heavy and share else ""


BURST = 2.0  # A burst is at least this multiple of a client's mean rate of requests.
LOST_HITS = 0.1  # A cache hit rate that is lower by this difference is a loss of cache hits.
ENOUGH_HITS = 10  # A cache hit rate of fewer admitted requests is not judged.


def waits_of(row: Mapping[str, Any], summary: Summary) -> str:
    """Return ``requests waited ...`` for the client of a window, and the causes that are known.

    The result is "" if the waits are not known. The known causes are a burst of the client's own,
    the queue of the gateway or of one worker, and a loss of cache hits. ``row`` is an element of
    the summary's ``worst_windows``; the summary of a log has no ``dp``, the number of replicas.
    """
    why, replicas = row.get("why"), summary.get("dp", 1)
    if why is None or why["wait_p50_s"] is None:
        return ""
    about = "about " if summary["notes"].get("queue_empty_share") == QUEUE_ESTIMATED else ""
    signs = ["a burst of its own"]
    signs += ["one worker"] if replicas > 1 else []
    signs += ["lost cache hits"] if why["run_hit_rate"] is not None else []
    none = " or ".join(filter(None, (", ".join(signs[:-1]), signs[-1])))
    return (
        f"requests waited {about}{with_unit(why['wait_p50_s'], 's')} (median; "
        f"{with_unit(why['run_wait_p50_s'], 's')} over the run) while "
        f"{number(why['others_waiting'])} requests of other clients waited (mean); "
        f"{', '.join(_known_causes(why, replicas)) or f'no sign of {none}'}"
    )


def _known_causes(why: Mapping[str, Any], replicas: int) -> Iterator[str]:
    """Yield the usual causes that apply to a client's waits."""
    if (why["arrivals_ratio"] or 0) >= BURST:
        yield f"it sent {number(why['arrivals_ratio'])} times its mean number of requests"
    in_gateway, part = why["worker"] is None, why["worker_ratio"] or 0
    if in_gateway and part > 0.5:
        yield f"{percent(part)} of its waiting was in the gateway's queue"
    elif not in_gateway and replicas > 1 and part >= (1 + 1 / replicas) / 2:
        yield f"{percent(part)} of its waiting was at worker {why['worker']}"
    hits, usual = why["hit_rate"], why["run_hit_rate"]
    known = why["admitted"] >= ENOUGH_HITS and hits is not None and usual is not None
    if known and usual - hits >= LOST_HITS:
        yield f"{percent(hits)} of its prompt tokens were cached, {percent(usual)} over the run"


def shortfall_of(summary: Summary) -> Shortfall | None:
    """Return the worst window if a client received less than its fair share in this window."""
    heavy = {row["client"] for row in summary["clients"] if row["misbehaving"]}
    rows = summary["worst_windows"][:1]
    if not rows or rows[0]["share"] >= NEAR_ALL or is_of_failures(summary):
        return None
    client, *rest = (rows[0][key] for key in ("client", "share", "start_s", "end_s"))
    return Shortfall(f"{client} (heavy)" if client in heavy else client, *rest)


IDLE = 0.99  # If queues are empty for this fraction of the time, no client delayed another.


def is_of_failures(summary: Summary) -> bool:
    """Return whether failed requests, instead of waits, lowered the shares of clients."""
    lost = summary.get("failed", 0) + summary.get("refused", 0)
    return bool(lost) and (summary.get("queue_empty_share") or 0) >= IDLE


MOST_PAIRS = 6  # maximum number of printed client pairs, those with the most lost tokens


def memory_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) on the cached tokens that clients lost to other clients.

    The first line names the measured window, because only evictions in this window are counted.
    """
    rows = summary["evictions"]
    label, within = "evictions", ""
    if summary.get("window_start_s") is not None:
        within = f"from {_period(summary, 'window_start_s', 'window_end_s')}: "
    if not rows:
        yield label, f"{within}no client lost a cached token"
    for row in sorted(rows, key=lambda one: -one["tokens"])[:MOST_PAIRS]:
        other = "itself" if row["client"] == row["by"] else row["by"]
        yield label, f"{within}{row['client']} lost {with_unit(row['tokens'], 'tokens')} to {other}"
        label = within = ""
    if len(rows) > MOST_PAIRS:
        yield "", f"and {len(rows) - MOST_PAIRS} more pairs with fewer tokens"
    if summary.get("pinned_beyond_share") is not None:
        yield "", _pins(summary["pinned_beyond_share"])


def _pins(audit: Mapping[str, float]) -> str:
    allocations = int(audit["allocations"])
    if not audit["beyond"]:
        return (
            f"running requests stayed within their clients' memory shares at all {allocations:,} "
            "allocations that evicted, so no client below its share lost a token to another"
        )
    return (
        f"ASSUMPTION BROKEN: at {int(audit['beyond']):,} of {allocations:,} allocations that "
        "evicted, running requests pinned more than their client's memory share, so max-min shares "
        f"of memory are not guaranteed; clients at or below their share lost "
        f"{with_unit(audit['lost_tokens'], 'tokens')} to others"
    )


NO_ORDER = "the scheduler has nothing to order, so limit the number of running requests"


def stall_line(summary: Summary) -> str:
    """Return a text on the well-behaved client with the most stall time, and on its main cause."""
    rows = [row for row in summary["clients"] if not row["misbehaving"]]
    known = [row for row in rows or summary["clients"] if row.get("stalled_s_per_min")]
    if not known:
        return "no prompt of another client held up an answer"
    worst = max(known, key=lambda row: float(row["stalled_s_per_min"]))
    others = (row for row in summary.get("stalled", ()) if row["client"] == worst["client"])
    causes = [row for row in others if row["by"] != worst["client"]]
    by = max(causes, key=lambda row: float(row["s"]), default=None)
    part = f", {percent(by['s'] / worst['stalled_s'])} by {by['by']}" if by else ""
    return (
        f"prompts of others hold up {worst['client']} for {number(worst['stalled_s_per_min'])} s "
        f"per minute of answer{part}; its largest gap between tokens is "
        f"{with_unit(worst['max_gap_s'], 's')}"
    )


MOST_CAUSES = 3


def cause_lines(summary: Summary, clock: ClockTime | None) -> Iterator[str]:
    """Yield a sentence on each of the longest stalls, with the stalled client and the prompt."""
    for row in summary.get("stall_causes", ())[:MOST_CAUSES]:
        waited = (
            f"request {printable(row['request'])} of {printable(row['client'])} waited "
            f"{with_unit(row['gap_s'], 's')} for a token, from {_instant(row['start_s'], clock)}"
        )
        if row["by"] is None:
            yield f"{waited}, and no prompt was computed for most of this time"
            continue
        own = row["by"] == row["client"]
        whose = "a prompt of its own client" if own else f"a prompt of {printable(row['by'])}"
        total = f"; {number(row['stalls'])} stalls of {number(row['clients'])} clients in total"
        yield (
            f"{waited}, because of {whose} (request {printable(row['by_request'])}, "
            f"{number(row['prompt_tokens'])} tokens, sent at {_instant(row['sent_s'], clock)})"
            f"{total if row['stalls'] > 1 else ''}"
        )


def _instant(time_s: float, clock: ClockTime | None) -> str:
    return clock.at(time_s) if clock else f"{number(time_s)} s"


def stall_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) on clients' stalls and their causes, or why stalls are unknown."""
    if why := summary.get("notes", {}).get("stalls"):
        yield "stalls", f"unknown: {why}"
        return
    if "victim_stalled_s_per_min" in summary and len(summary["clients"]) > 1:
        yield "stalls", stall_line(summary)
    label = "" if len(summary.get("clients", ())) > 1 else "stalls"
    clock = read_clock(summary.get("began"), summary.get("duration") or 0.0)
    for line in cause_lines(summary, clock):
        yield label, line
        label = ""


def session_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) on waits, slowdowns and token rates of sessions."""
    censored = set(summary.get("censored", ()))
    worst = next(iter(summary["worst_sessions"]), None)
    if worst is None:
        return
    share = written(summary, "min_session_share_60s")
    known = summary.get("min_session_share_60s") is not None
    longest = (
        f"a call of session {printable(worst['session'])} of {printable(worst['client'])} waited "
        f"longest, {latency(summary, 'max_turn_wait_s', censored)} s"
    )
    if summary["max_turn_wait_s"] is None:
        longest = "the longest wait of a call is not finite, because calls were refused"
    yield (
        "sessions",
        longest + (f"; lowest share of a session in a minute {share}" if known else ""),
    )
    yield (
        "",
        f"well-behaved: P50 {number(summary.get('victim_session_slowdown_p50'))} and P95 "
        f"{number(summary.get('victim_session_slowdown_p95'))} times the time of the session's "
        "calls alone",
    )
    yield (
        "",
        f"interactivity: median {number(summary.get('median_intvty'))}, P99 "
        f"{number(summary.get('p99_intvty'))} tok/s per user (1 / TPOT)",
    )


def results_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text) with the run's results over all clients."""
    by_weight = " over weight" if is_weighted(summary) else ""
    yield "throughput", _throughput(summary)
    yield (
        "Jain index",
        f"{written(summary, 'jain_index')} of service{by_weight} "
        f"(max-min fair allocation: {written(summary, 'jain_index_maxmin')})",
    )
    yield "whole run", _worst(summary)
    # Summaries that older versions wrote contain no worst windows.
    if summary.get("worst_windows"):
        yield from window_lines(summary)
    yield "well-behaved", _victims(summary)
    yield from _longer(summary)
    yield from _of_requests(summary)
    yield "service gap", f"{_gap(summary)}; {_bound_text(summary)}"
    if "tenants" in summary:
        yield from tenant_lines(summary)
    if "worst_sessions" in summary:
        yield from session_lines(summary)
    yield from stall_lines(summary)
    if "evictions" in summary:
        yield from memory_lines(summary)
    if "prefill_busy_ratio" in summary:
        yield "two sides", _sides(summary)
    if "goodput_ratio" in summary:
        yield from goodput_lines(summary)
    if "time_to_50pct_s" in summary:
        times = " / ".join(time_to(summary, part) for part in (50, 90, 100))
        yield "completion", f"50 / 90 / 100% of the programs had finished after {times} s"
    for number_of_line, line in enumerate(limit_lines(summary)):
        yield "" if number_of_line else "limit", line
    yield from _request_lines(summary)
    if hides_backlog(summary):
        yield "backlog", hidden_backlog(summary)
    if is_extrapolated(summary):
        outside = written(summary, "outside_fit_ratio")
        yield "timing", f"{outside} of the GPU time is outside the range of the profile's fit"
    for column in columns_of(Display.SUMMARY):
        value, unit = written(summary, column.key, column.form), CATALOGUE[column.key].unit
        known = summary.get(column.key) is not None
        yield column.title, f"{value} {unit}" if known and unit else value


def _request_lines(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines on the numbers of requests by outcome, and on waits for ``--max-concurrency``."""
    estimated = summary.get("estimated")
    yield (
        "requests",
        f"{number(summary['num_requests'])} of {number(summary['num_programs'])} programs: "
        f"{number(summary['completed'])} completed, {number(summary['unfinished'])} unfinished, "
        f"{number(summary['refused'])} refused"
        + (f", {number(summary['demoted'])} demoted" if "demoted" in summary else "")
        + (f", {number(summary['failed'])} failed" if summary["failed"] else "")
        + (f"; {number(estimated)} have estimated token counts" if estimated else ""),
    )
    if summary.get("held_max_s"):
        p50, p99, most = (written(summary, f"held_{one}_s") for one in ("p50", "p99", "max"))
        yield (
            "slots",
            f"{number(summary['held'])} requests waited for a slot of --max-concurrency: P50 {p50} "
            f"s, P99 {p99} s, at most {most} s of all requests; latencies count from the slot",
        )


def hidden_backlog(summary: Summary) -> str:
    """Return a warning, with a remedy, that demand exceeds capacity although queues are empty."""
    empty, slow = written(summary, "queue_empty_share"), number(summary["lone_tpot_ratio"])
    return (
        f"hidden: queues were empty {empty} of the time, but a token took {slow} times as long "
        f"as on an idle replica; {NO_ORDER}"
    )


def is_extrapolated(summary: Summary) -> bool:
    """Return whether much of the simulated time is outside the range of the timing profile."""
    outside = summary.get("outside_fit_ratio")
    return outside is not None and bool(outside > WARN_ABOVE)


def _worst(summary: Summary) -> str:
    reason = summary.get("notes", {}).get("min_entitlement_ratio")
    if summary["min_entitlement_ratio"] is None and reason == NOT_CONTENDED:
        return NOT_CONTENDED
    least = written(summary, "min_entitlement_ratio")
    is_less = (summary["min_entitlement_ratio"] or 1) < 1
    of_failures = ", because requests failed" if is_less and is_of_failures(summary) else ""
    rows = [row for row in summary["clients"] if row.get("entitlement_ratio") is not None]
    worst = min(rows, key=lambda row: float(row["entitlement_ratio"]), default=None)
    if worst is None:
        return f"the lowest share of a client is {least}"
    fair = worst.get("entitlement_tok_s")
    rates = f" ({number(worst['service_rate_tok_s'])} of {number(fair)} tok/s)" if fair else ""
    return (
        f"{printable(worst['client'])} received {least} of its fair share{rates}, the least of all "
        f"clients{of_failures}"
    )


def _throughput(summary: Summary) -> str:
    output = summary.get("output_rate_tok_s", summary["output_throughput"])
    text = (
        f"{with_unit(summary['service_rate_tok_s'], 'tok/s')} of service (input + 2 x output), "
        f"{number(output)} of output, {number(summary.get('extend_rate_tok_s'))} of computed input"
    )
    if summary.get("window_start_s") is not None:
        text += f", from {_period(summary, 'window_start_s', 'window_end_s')}"
    if summary.get("demand_limited"):
        text += f" ({empty_queues(summary)})"
    return text


def empty_queues(summary: Summary) -> str:
    """Return a text with the fraction of the window in which no request waited."""
    empty = summary.get("queue_empty_share")
    if empty is None:
        return "waits of requests are not known; shares may reflect demand"
    partly = "" if is_mostly_empty(summary) else "partly "
    return f"no request waited for {percent(empty)} of the window; shares {partly}reflect demand"


MOSTLY = 0.5  # If queues are empty for this fraction of the time, the load limits throughput.


def is_mostly_empty(summary: Summary) -> bool:
    """Return whether queues were empty for most of the time."""
    empty = summary.get("queue_empty_share")
    return empty is None or bool(empty >= MOSTLY)


def _period(summary: Summary, start: str, end: str) -> str:
    return f"{_moment(summary.get(start))} to {_moment(summary.get(end))} s"


def _moment(value: float | None) -> str:
    """Return seconds as text: a whole number or, below 10 s, three significant digits."""
    return f"{value:.3g}" if value is not None and abs(value) < 10 else whole(value)


def _victims(summary: Summary) -> str:
    """Return well-behaved clients' latency percentiles; mark percentiles of too few latencies."""
    censored, n = set(summary.get("censored", ())), summary.get("victim_n")
    ranks = chosen_percentiles(summary) or (50, P95, P99)
    keys = {rank: f"victim_p{rank}_s" for rank in ranks}
    parts = [
        f"P{rank} {latency(summary, key, censored)}"
        + ("" if summary[key] is None else f" s{FEW if is_few(n, rank) else ''}")
        for rank, key in keys.items()
        if key in summary
    ]
    text = ", ".join(parts) + latency_kind(summary)
    if n is None:
        return text
    few = [rank for rank in keys if is_few(n, rank)]
    needed = " and ".join(f"about {ENOUGH[rank]} for a P{rank}" for rank in few)
    return f"{text} (n = {n:,}{f'; {FEW} needs {needed}' if few else ''})"


TWICE = 1.5  # A factor of at least this number is written as a multiple instead of a percentage.


def _longer(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield advice on the ``--duration`` that gives enough latencies for a P99."""
    n, end_s = summary.get("victim_n"), summary.get("window_end_s")
    if not n or is_carried(n, P99) or not end_s or not summary.get("simulated"):
        return
    if summary.get("trace") or chosen_percentiles(summary) or summary.get("complete") is False:
        return
    # If the window contains all programs, a longer ``--duration`` gives no additional latencies.
    if isclose(end_s, summary.get("duration") or 0.0):
        return
    # Arrivals end between two whole seconds only if --num-programs ended them.
    if not float(end_s).is_integer():
        return
    times = 1.1 * ENOUGH[P99] / n
    longer_s = ceil(end_s * times / 100) * 100
    much = f"{times:.0f} times as long" if times >= TWICE else f"{times - 1:.0%} longer"
    yield "", f"for a reliable P99: --duration {longer_s}, {much}"


def _of_requests(summary: Summary) -> Iterator[tuple[str, str]]:
    ranks = chosen_percentiles(summary)
    for name in REQUEST_LATENCIES if ranks else ():
        keys = {rank: f"p{rank}_{name}_ms" for rank in ranks}
        values = ", ".join(f"P{rank} {number(summary.get(key))}" for rank, key in keys.items())
        yield name.upper(), f"{values} ms, of all completed requests"


def latency_kind(summary: Summary) -> str:
    """Return a phrase that says what the latencies measure, and whether they include think time."""
    kind = {"ttft": " to the first token", "program": " for a program"}
    text = kind.get(summary.get("latency", ""), "")
    if summary.get("latency") == "program" and summary.get("think_time") is not None:
        text += ", think time included" if summary["think_time"] else ", without think time"
    elif (
        summary.get("latency") == "program"
        and "layout" in summary
        and summary["num_requests"] > summary["num_programs"]
    ):
        text += ", with the time between its requests"
    return text


def _sides(summary: Summary) -> str:
    transfer = with_unit(summary["mean_transfer_ms"], "ms")
    return (
        f"prefill workers busy {written(summary, 'prefill_busy_ratio')} of the run, decode workers "
        f"{written(summary, 'decode_busy_ratio')}; a transfer of KV takes {transfer}"
    )


def _gap(summary: Summary) -> str:
    gap, bound = summary["max_service_gap"], summary["service_gap_bound"]
    bound_s = summary.get("service_gap_bound_s")
    if gap is None:
        return "not defined"
    work = _work(
        gap, gap * bound_s / bound if bound and bound_s else None, " of the cluster's work"
    )
    by_weight = ", each over its weight" if is_weighted(summary) else ""
    return f"at most {work} between two waiting clients{by_weight}"


def _bound_text(summary: Summary) -> str:
    tokens, source = summary["service_gap_bound"], summary.get("bound_source")
    if tokens is None:
        reason = summary.get("notes", {}).get("service_gap_bound")
        return "no bound" + (f": {reason}" if reason else "")
    work = _work(tokens, summary.get("service_gap_bound_s"))
    return f"{source or 'the scheduler'} allows at most {work}"


def _work(tokens: float, time_s: float | None, of: str = "") -> str:
    """Return a number of tokens as text, with the time that the whole cluster needs for them."""
    told = "" if time_s is None else f" ({number(time_s)} s{of})"
    return f"{tokens:,.0f} computed tokens{told}"


def time_to(summary: Summary, part: int) -> str:
    """Return when ``part`` percent of the programs had finished; ``> x`` if fewer finished."""
    time_s: float | None = summary.get(f"time_to_{part}pct_s")
    return more_than(float(summary["duration"])) if time_s is None else number(time_s)


NUMBER = re.compile(r"\d[\d,.]*")
SUCH = ", for example"
# Notes about the metrics in ``WITH_LINES`` are left out, because the summary's lines on limits and
# stalls explain these metrics.
WITH_LINES = ("limit", "limit_memory_ratio", "limit_hit_rate", "stalls")
# Notes with these keys are left out if the line "service gap" explains them.
OF_THE_BOUND = ("service_gap_bound", "service_gap_bound_s", "bound_source")


def notes_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield lines (label, text), one for each reason why values of the summary are undefined.

    Values that the summary text never shows are omitted.
    """
    by_reason: dict[str, list[str]] = {}
    for key, reason in summary.get("notes", {}).items():
        if not (
            key in WITH_LINES
            or reason in (NOT_CONTENDED, TOO_FEW_REQUESTS)
            or key.endswith("_ms")
            or key.startswith(("time_to_", "goodput_late", "goodput_slack"))
            or (summary["service_gap_bound"] is None and key in OF_THE_BOUND)
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
    """Merge reasons that differ only in numbers, and keep the text of the first reason."""
    found: dict[str, tuple[str, list[str]]] = {}
    for reason, keys in by_reason.items():
        first, others = found.setdefault(NUMBER.sub("#", reason), (reason, []))
        others += keys
        if reason != first:
            found[NUMBER.sub("#", reason)] = (first.removesuffix(SUCH) + SUCH, others)
    return dict(found.values())
