"""Explanations of a run's summary, as sentences on the meaning of each number."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from fairbench.errors import printable
from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.metrics.shown_percentiles import ENOUGH, P95, P99, chosen_percentiles, is_few
from fairbench.report.client_table import is_weighted
from fairbench.report.limit_lines import limit_sentences
from fairbench.report.numbers import latency, number, percent, whole, written
from fairbench.report.result_lines import (
    ALL_SERVED,
    is_mostly_empty,
    is_of_failures,
    share_beyond,
    time_to,
    waits_of,
)
from fairbench.results.store import Summary

# Allocations count as equally even if their Jain's indices differ by at most ``EQUAL``.
EQUAL = 0.01
CLEAR = 0.95  # A client counts as fairly served above this fraction of its fair share.


def explained_text(summary: Summary, width: int) -> str:
    """Return the explanations of a summary as text of at most ``width`` columns.

    The text begins with a blank line.
    """
    lines = [""]
    for title, sentences in explanations(summary):
        lines += wrap(f"{title}: {' '.join(sentences)}", width, subsequent_indent="  ")
    return "".join(f"{line}\n" for line in lines)


def explanations(summary: Summary) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the sentences of each topic, in the order of the summary."""
    if not summary["num_programs"]:
        return
    for title, sentences in (
        ("Clients", _explain_clients(summary)),
        ("Throughput", _throughput(summary)),
        ("Jain index", _jain(summary)),
        ("Worst window", _windows(summary)),
        ("Whole run", _whole_run(summary)),
        ("Well-behaved clients", _victims(summary)),
        ("Service gap", _gap(summary)),
        ("Completion", _completion(summary)),
        ("Limit", limit_sentences(summary)),
        ("Requests", _requests(summary)),
    ):
        if found := list(sentences):
            yield title, found


def _explain_clients(summary: Summary) -> Iterator[str]:
    """Yield sentences that explain the table of clients by the values of the worst-off client."""
    yield (
        "Service is input tokens plus two times output tokens; computed service leaves out input "
        "tokens that the KV cache supplied."
    )
    rows = [row for row in summary["clients"] if not row["misbehaving"]]
    judged = [row for row in rows if row.get("entitlement_ratio") is not None]
    if judged:
        row = min(judged, key=lambda row: float(row["entitlement_ratio"]))
    elif rows:
        row = max(rows, key=lambda row: row.get("p95_s") or 0.0)
    else:
        return
    name = row["client"]
    yield (
        f"{name} received {whole(row['service_rate_tok_s'])} tok/s of service, of which "
        f"{whole(row['actual_service_tok_s'])} tok/s were computed."
    )
    if row.get("cache_hit_rate") is not None:
        yield f"The cache supplied {written(row, 'cache_hit_rate')} of the input tokens of {name}."
    if row.get("entitlement_ratio") is not None:
        yield (
            f"{name} received {percent(row['entitlement_ratio'])} of its max-min fair share, the "
            f"part of the total service that {name} could claim by its demand and weight."
        )
    if row.get("gpu_s") is not None:
        yield f"The requests of {name} took {number(row['gpu_s'])} s of GPU time."


def _throughput(summary: Summary) -> Iterator[str]:
    when = ""
    if summary.get("window_start_s") is not None:
        start, end = whole(summary["window_start_s"]), whole(summary["window_end_s"])
        when = f" in the measured period from {start} to {end} s"
    yield f"All clients received {number(summary['service_rate_tok_s'])} tok/s of service{when}."
    if summary.get("demand_limited"):
        cause = "and the scheduler determine the"
        if is_mostly_empty(summary):
            cause = "rather than the scheduler determines most"
        yield (
            f"No request waited in {written(summary, 'queue_empty_share')} of this period, so "
            f"the load {cause} differences between clients."
        )


def _jain(summary: Summary) -> Iterator[str]:
    jain, best = summary["jain_index"], summary.get("jain_index_maxmin")
    per = " over weight" if is_weighted(summary) else ""
    if jain is None:
        return
    count = len(summary["clients"])
    yield (
        f"The index is {written(summary, 'jain_index')} for service{per}: 1 means that all "
        f"{count} clients received the same, {1 / count:.3f} that one client received all."
    )
    if best is not None:
        verdict = "so service was as even as the demand allows"
        if jain < best - EQUAL:
            verdict = "so service was less even than the demand allows"
        elif jain > best + EQUAL:
            verdict = "so some clients received less than they could claim"
        yield (
            "A max-min fair allocation of the same demand has "
            f"{written(summary, 'jain_index_maxmin')}, {verdict}."
        )
    if summary.get("jain_index_actual") is not None:
        yield f"For computed service{per} the index is {written(summary, 'jain_index_actual')}."
    if summary.get("jain_index_entitlement") is not None:
        yield (
            "For service relative to each client's max-min fair share, the index is "
            f"{written(summary, 'jain_index_entitlement')}."
        )
    if summary.get("jain_index_paper_window") is not None:
        start, end = (whole(summary[f"paper_window_{one}_s"]) for one in ("start", "end"))
        yield (
            f"For service while all clients were active ({start} to {end} s), the index is "
            f"{written(summary, 'jain_index_paper_window')}."
        )


def _windows(summary: Summary) -> Iterator[str]:
    for row in summary.get("worst_windows", ())[:1]:
        if row["share"] >= 1:
            length = whole(row["end_s"] - row["start_s"])
            yield (
                f"In all windows of {length} s, {ALL_SERVED}. A client is judged only in windows "
                "in which its requests waited for at least half of the time."
            )
            continue
        yield (
            f"From {whole(row['start_s'])} to {whole(row['end_s'])} s, {printable(row['client'])} "
            f"received {percent(row['share'])} of its max-min fair share of this time, the "
            f"lowest share of any client that had to wait in a window of this length."
        )
        if is_of_failures(summary):
            yield "Requests that failed count as not served; no client delayed another client."
        elif more := share_beyond(row):
            length = whole(row["end_s"] - row["start_s"])
            yield f"In these {length} s, {more} of its own fair share."
        if (waited := waits_of(row, summary)) and not is_of_failures(summary):
            yield f"{printable(row['client'])}'s {waited}."


def _whole_run(summary: Summary) -> Iterator[str]:
    least = summary["min_entitlement_ratio"]
    if least is not None:
        fair = "" if least < CLEAR else ", so no client was short of service over the whole run"
        yield (
            f"The client worst off received {percent(least)} of its max-min fair share of the "
            f"service that this run delivered{fair}."
        )
    elif summary.get("notes", {}).get("min_entitlement_ratio") == NOT_CONTENDED:
        yield "Every client received all the service that it asked for, so shares are not judged."


def _victims(summary: Summary) -> Iterator[str]:
    censored, n = set(summary.get("censored", ())), summary.get("victim_n")
    ranks = [
        rank
        for rank in chosen_percentiles(summary) or (50, P95, P99)
        if summary.get(f"victim_p{rank}_s") is not None
    ]
    if not ranks:
        return
    what = "first tokens came" if summary.get("latency") == "ttft" else "programs ended"
    for rank in ranks:
        time_s = latency(summary, f"victim_p{rank}_s", censored)
        yield f"{rank}% of their {what} within {time_s} s (mean over these clients)."
        if n is not None and is_few(n, rank):
            yield f"The P{rank} is uncertain: a P{rank} needs {ENOUGH[rank]} latencies, not {n:,}."


def _gap(summary: Summary) -> Iterator[str]:
    if summary["max_service_gap"] is not None:
        yield (
            "While two clients both had requests waiting at every worker, the computed service of "
            f"one ran ahead of the other's by at most {whole(summary['max_service_gap'])} tokens."
        )
    if summary["service_gap_bound"] is not None:
        source = summary.get("bound_source")
        by = f" by {source}" if source else ""
        yield f"The scheduler guarantees at most {whole(summary['service_gap_bound'])} tokens{by}."


def _completion(summary: Summary) -> Iterator[str]:
    for part in (50, 90, 100) if "time_to_50pct_s" in summary else ():
        yield f"{part}% of the programs had finished after {time_to(summary, part)} s."


def _requests(summary: Summary) -> Iterator[str]:
    yield (
        f"The clients started {number(summary['num_programs'])} programs and sent "
        f"{number(summary['num_requests'])} requests, of which {number(summary['completed'])} "
        "were completed."
    )
    if summary["unfinished"]:
        yield f"{number(summary['unfinished'])} requests were unfinished when the run ended."
    if summary["refused"]:
        yield f"{number(summary['refused'])} requests were refused, for example as too large."
    if summary["failed"]:
        yield f"{number(summary['failed'])} requests failed."
