"""The numbers over all clients of a run's summary, a line for each topic, and its notes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil, isclose

from fairbench.metrics.catalogue import CATALOGUE, REQUEST_LATENCIES, columns_of
from fairbench.metrics.contention import hides_backlog
from fairbench.metrics.metric import NOT_CONTENDED, TOO_FEW_REQUESTS, Display
from fairbench.metrics.shown_percentiles import (
    ENOUGH,
    P95,
    P99,
    chosen_percentiles,
    is_carried,
    is_few,
)
from fairbench.metrics.stretches import WARN_ABOVE
from fairbench.report.client_table import FEW, is_crowd, is_weighted
from fairbench.report.crowd import many_keys
from fairbench.report.numbers import (
    latency,
    more_than,
    number,
    percent,
    whole,
    with_unit,
    written,
)
from fairbench.report.optional_lines import (
    goodput_lines,
    is_of_failures,
    memory_lines,
    tenant_lines,
    window_lines,
)
from fairbench.results.store import Summary

NO_ORDER = "the scheduler has nothing to order, so limit the number of running requests"


def results_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the numbers over all clients: each line's label and text."""
    by_weight = " over weight" if is_weighted(summary) else ""
    yield "throughput", _throughput(summary)
    yield (
        "Jain index",
        f"{written(summary, 'jain_index')} of service{by_weight} "
        f"(max-min fair allocation: {written(summary, 'jain_index_maxmin')})",
    )
    yield "", f"{written(summary, 'jain_index_actual')} of computed service{by_weight}"
    if summary["jain_index_entitlement"] is not None:
        share = written(summary, "jain_index_entitlement")
        yield "", f"{share} of service relative to the max-min fair share"
    if summary.get("jain_index_paper_window") is not None:
        between = _interval(summary, "paper_window_start_s", "paper_window_end_s")
        jain = written(summary, "jain_index_paper_window")
        yield "", f"{jain} of service while all clients were active ({between})"
    if summary.get("worst_windows"):  # summaries that older versions stored have no such times
        yield from window_lines(summary)
    yield "whole run", _worst(summary)
    yield "well-behaved", _victims(summary)
    yield from _longer(summary)
    yield from _of_requests(summary)
    yield "service gap", f"{_gap(summary)}; {_bound(summary)}"
    if "tenants" in summary:
        yield from tenant_lines(summary)
    if "evictions" in summary:
        yield from memory_lines(summary)
    if "prefill_busy_ratio" in summary:
        yield "two sides", _sides(summary)
    if "goodput_ratio" in summary:
        yield from goodput_lines(summary)
    if "time_to_50pct_s" in summary:
        times = " / ".join(_time_to(summary, part) for part in (50, 90, 100))
        yield "completion", f"50 / 90 / 100% of the programs had finished after {times} s"
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
        yield "slots", _slots(summary)
    if hides_backlog(summary):
        yield "backlog", hidden_backlog(summary)
    if is_extrapolated(summary):
        outside = written(summary, "outside_fit_ratio")
        yield "timing", f"{outside} of the GPU time is outside the range of the profile's fit"
    for column in columns_of(Display.SUMMARY):
        value, unit = written(summary, column.key, column.form), CATALOGUE[column.key].unit
        known = summary.get(column.key) is not None
        yield column.title, f"{value} {unit}" if known and unit else value


def _slots(summary: Summary) -> str:
    """Return the wait that a limit on concurrency added before requests were sent."""
    p50, p99, most = (written(summary, f"held_{one}_s") for one in ("p50", "p99", "max"))
    return (
        f"{number(summary['held'])} requests waited for a slot of --max-concurrency: P50 {p50} s, "
        f"P99 {p99} s, at most {most} s of all requests; latencies count from the slot"
    )


def hidden_backlog(summary: Summary) -> str:
    """Warn that demand exceeds capacity although queues are empty, and name the remedy."""
    empty, slow = written(summary, "queue_empty_share"), number(summary["lone_tpot_ratio"])
    return (
        f"hidden: queues were empty {empty} of the time, but a token took {slow} times as long "
        f"as on an idle replica; {NO_ORDER}"
    )


def is_extrapolated(summary: Summary) -> bool:
    """Return whether much of the simulated time lies outside the timing profile's fit."""
    outside = summary.get("outside_fit_ratio")
    return outside is not None and bool(outside > WARN_ABOVE)


def _worst(summary: Summary) -> str:
    reason = summary.get("notes", {}).get("min_entitlement_ratio")
    if summary["min_entitlement_ratio"] is None and reason == NOT_CONTENDED:
        return NOT_CONTENDED
    least = written(summary, "min_entitlement_ratio")
    is_less = (summary["min_entitlement_ratio"] or 1) < 1
    of_failures = ", because requests failed" if is_less and is_of_failures(summary) else ""
    return f"minimum fair share of own total {least}{of_failures}"


def _throughput(summary: Summary) -> str:
    output = summary.get("output_rate_tok_s", summary["output_throughput"])
    text = (
        f"{with_unit(summary['service_rate_tok_s'], 'tok/s')} of service, "
        f"{number(output)} of output, {number(summary.get('extend_rate_tok_s'))} of computed input"
    )
    if summary.get("window_start_s") is not None:
        text += f", from {_interval(summary, 'window_start_s', 'window_end_s')}"
    if summary.get("demand_limited"):
        text += f" ({empty_queues(summary)})"
    return text


def empty_queues(summary: Summary) -> str:
    """Return how far the demand limits the rates, by the time with empty queues."""
    empty = summary.get("queue_empty_share")
    if empty is None or empty >= MOSTLY:
        return f"limited by demand: queues empty {percent(empty)} of the time"
    return (
        f"partly limited by demand: queues empty {percent(empty)} of the time, requests waiting "
        f"in {percent(1 - empty)}"
    )


MOSTLY = 0.5  # part of the time with empty queues from which on the demand limits the rates


def _interval(summary: Summary, start: str, end: str) -> str:
    return f"{_moment(summary.get(start))} to {_moment(summary.get(end))} s"


def _moment(value: float | None) -> str:
    """Return seconds as a whole number, below 10 s with three significant digits."""
    return f"{value:.3g}" if value is not None and abs(value) < 10 else whole(value)


def _victims(summary: Summary) -> str:
    """Return the latency of the well-behaved clients, and whether there are too few values."""
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


TWICE = 1.5  # multiple of a duration that rounds to 2


def _longer(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the ``--duration`` that gives well-behaved clients enough latencies for a P99."""
    n, end_s = summary.get("victim_n"), summary.get("window_end_s")
    if not n or is_carried(n, P99) or not end_s or not summary.get("simulated"):
        return
    if summary.get("trace") or chosen_percentiles(summary) or summary.get("complete") is False:
        return
    if isclose(end_s, summary.get("duration") or 0.0):  # long enough for its programs
        return
    times = 1.1 * ENOUGH[P99] / n
    longer_s = ceil(end_s * times / 100) * 100
    much = f"{times:.0f} times as long" if times >= TWICE else f"{times - 1:.0%} longer"
    yield "", f"for a reliable P99: --duration {longer_s}, {much}"


def _of_requests(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield percentiles of the requests' latencies, if the user chose some."""
    ranks = chosen_percentiles(summary)
    for name in REQUEST_LATENCIES if ranks else ():
        keys = {rank: f"p{rank}_{name}_ms" for rank in ranks}
        values = ", ".join(f"P{rank} {number(summary.get(key))}" for rank, key in keys.items())
        yield name.upper(), f"{values} ms, of all completed requests"


def latency_kind(summary: Summary) -> str:
    """Return the subject of the latencies, and whether they include think time."""
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
    work = _work(gap, gap * bound_s / bound if gap and bound and bound_s else None)
    return f"largest{' over weight' if is_weighted(summary) else ''} {work}"


def _bound(summary: Summary) -> str:
    tokens, source = summary["service_gap_bound"], summary.get("bound_source")
    if tokens is None:
        reason = summary.get("notes", {}).get("service_gap_bound")
        return "no bound" + (f": {reason}" if reason else "")
    bound = f"guaranteed at most {_work(tokens, summary.get('service_gap_bound_s'))}"
    return bound + (f" by {source}" if source else "")


def _work(tokens: float | None, time_s: float | None) -> str:
    """Return tokens, and the seconds that the whole cluster needs to serve them."""
    if tokens is None:
        return "-"
    return f"{tokens:,.0f} tokens" + ("" if time_s is None else f" ({number(time_s)} s of service)")


def _time_to(summary: Summary, part: int) -> str:
    """Return when ``part`` percent had finished, or the run's length as a lower bound."""
    time_s: float | None = summary.get(f"time_to_{part}pct_s")
    return more_than(float(summary["duration"])) if time_s is None else number(time_s)


NUMBER = re.compile(r"\d[\d,.]*")
SUCH = ", for example"
# shown in the gap's line
OF_THE_BOUND = ("service_gap_bound", "service_gap_bound_s", "bound_source")


def notes_of(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield the reasons for undefined values; values with equal reasons share a line.

    Values that the table omits or explains are only in the JSON.
    """
    by_reason: dict[str, list[str]] = {}
    for key, reason in summary.get("notes", {}).items():
        if not (
            reason in (NOT_CONTENDED, TOO_FEW_REQUESTS)
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
    """Merge the keys of reasons that differ only in numbers; the first reason stands for all."""
    found: dict[str, tuple[str, list[str]]] = {}
    for reason, keys in by_reason.items():
        first, others = found.setdefault(NUMBER.sub("#", reason), (reason, []))
        others += keys
        if reason != first:
            found[NUMBER.sub("#", reason)] = (first.removesuffix(SUCH) + SUCH, others)
    return dict(found.values())
