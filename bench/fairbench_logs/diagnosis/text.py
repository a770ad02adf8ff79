"""A diagnosis as sentences, as a page of text, and as JSON, the output of ``diagnose --json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.errors import printable
from fairbench.metrics.floods import LEAST_REQUESTS, Harm
from fairbench.metrics.limit import WORK
from fairbench.metrics.traffic import LONG_S
from fairbench.report.limit_lines import has_limit, limit_line
from fairbench.report.numbers import number, percent, seconds, whole, written
from fairbench.report.result_lines import is_extrapolated, stall_lines
from fairbench.report.table import cut_middle, plain_table, printed
from fairbench.report.traffic_lines import flood_line, harm_line, window, window_list
from fairbench.results.store import Summary
from fairbench_logs.diagnosis.access_log import FIRST_TOKEN, RESPONSE
from fairbench_logs.diagnosis.diagnosis import (
    Diagnosis,
    best_fair,
    logged_waits,
    others_waits,
    unlike_replay,
)
from fairbench_logs.diagnosis.replay import ReplayedRun
from fairbench_logs.overload import Overload, overload_line, overload_of
from fairbench_logs.planning.table import needed_line

NOBODY = "Nobody floods"
NOT_YOURS = "Only on the simulated cluster, not on yours"
ONE_CLIENT = "There is one client, so none floods the others."
NO_FLOOD = "There is no flood: no client sends 3 times the mean of the others and 10% of the load."


def flood_lines(found: Diagnosis) -> Iterator[str]:
    """Yield a sentence for each flood, or a sentence that says that there is no flood."""
    count = len(found.log.traffic.client)
    if count < LEAST_REQUESTS:
        yield f"{count} request{'s are' if count > 1 else ' is'} too few to find a flood."
    elif len(found.log.traffic.clients) == 1:
        yield ONE_CLIENT
    elif not found.floods:
        yield NO_FLOOD
    if overload := overload_in(found):
        yield overload_line(found.waits, overload, _basis(found))
    for one in found.floods:
        yield flood_line(found.log.traffic, one)


def harm_lines(found: Diagnosis) -> Iterator[str]:
    """Yield sentences that say which clients waited because of floods, and when they waited."""
    basis = _basis(found)
    if not found.floods or not found.waits.knows_waits:
        return
    if found.harm is None:
        yield f"No other client waits noticeably longer than usual, {basis}."
        return
    measured = found.log.measured or FIRST_TOKEN
    for one in found.harm.parts or (found.harm,):
        yield harm_line(found.waits, one, len(found.heavy), measured, basis)


def _basis(found: Diagnosis) -> str:
    """Return a phrase that names the source of the waiting times: the access log, or a replay."""
    return "in the log" if found.log.measured else f"in the replay under {found.present}"


def overload_in(found: Diagnosis) -> Overload | None:
    """Return the period in which most clients of a log without floods wait, or None."""
    if found.floods or found.log.measured == RESPONSE or not found.waits.knows_waits:
        return None
    return overload_of(found.waits)


def change_lines(found: Diagnosis) -> Iterator[str]:
    """Yield a sentence on how the best fair scheduler changes the waits.

    The yielded sentence is marked as uncertain if waits in the replay and in the log differ much.
    """
    first = found.first
    if first is None:
        return
    for line in _change_line(found, first):
        yield _marked(line) if unlike_replay(found) else line


def unlike_lines(found: Diagnosis) -> Iterator[str]:
    """Yield a warning if the simulated cluster differs from the cluster in the log."""
    first, unlike = found.first, unlike_replay(found)
    if first is not None and unlike is not None:
        yield (
            f"The simulated cluster ({cluster_text(found)}) does not resemble yours: TTFT P95 is "
            f"{number(unlike.logged_s)} s in the log and {number(unlike.replayed_s)} s simulated "
            f"under {first.scheduler}. Name your cluster with --gpu, --model and --dp."
        )


def cluster_text(found: Diagnosis) -> str:
    """Return the simulated cluster, such as ``2 x a100-80gb, llama-3.1-8b``."""
    gpu, model = found.replays[0].summary["timing_profile"].split("/")[:2]
    return f"{found.dp} x {gpu}, {model}"


def _marked(line: str) -> str:
    return f"{NOT_YOURS}: {line[0].lower()}{line[1:]}"


def _change_line(found: Diagnosis, first: ReplayedRun) -> Iterator[str]:
    best = best_fair(found)
    if best is None:
        if not found.missing:
            yield "No fair scheduler was replayed."
        return
    before, after = (others_waits(one.traffic, found)["others_p95_s"] for one in (first, best))
    who = "the other clients" if found.floods else "all clients"
    if before is None or after is None:
        yield f"No request of {who} was replayed."
        return
    change = f"from {number(before)} s to {number(after)} s ({first.scheduler} to {best.scheduler})"
    if found.floods:
        when = window_list(found.judged_s, found.log.traffic.clock)
        change += f", for requests sent from {when}"
    if after > 0.9 * before:
        reason = (
            "The simulated replicas keep up with the load."
            if before <= LONG_S
            else "Clients wait for the whole load, so more replicas help, not another order."
        )
        why = "" if unlike_replay(found) else f" {reason}"
        yield f"Fair queueing changes little: the TTFT P95 of {who} changes {change}.{why}"
    else:
        yield f"Fair queueing lowers the TTFT P95 of {who} {change}."


def answer_lines(found: Diagnosis) -> list[str]:
    """Return the sentences of a diagnosis: floods, delays, remedies and needed replicas."""
    replicas = [replica_line(found)] if found.plan else []
    replicas += concurrency_lines(found)
    answers = [*flood_lines(found), *harm_lines(found), *stalled_lines(found)]
    answers += change_lines(found)
    answers += [*limit_lines(found), *replicas]
    return [*unlike_lines(found), *answers]


def stalls_in(found: Diagnosis) -> Mapping[str, Any]:
    """Return the metrics of stalls (pauses in answers) in the log, with heavy clients marked."""
    rows = found.log.stalls.get("clients", ())
    marked = [{**row, "misbehaving": row["client"] in found.heavy} for row in rows]
    return {**found.log.stalls, "clients": marked}


def stalled_lines(found: Diagnosis) -> Iterator[str]:
    """Yield sentences that name the clients whose prompts stall the answers of other clients."""
    if "stalls" not in found.log.stalls["notes"]:
        for _, line in stall_lines(stalls_in(found)):
            yield f"{line[0].upper()}{line[1:]}."


def limit_lines(found: Diagnosis) -> Iterator[str]:
    """Yield a sentence that compares the log's scheduler with the theoretical optimum."""
    if found.first is not None:
        for line in replay_line(found.first.scheduler, found.first.summary):
            yield _marked(line) if unlike_replay(found) else line


def replay_line(scheduler: str, summary: Summary) -> Iterator[str]:
    """Yield a line that compares a log's replay with the highest possible service, if known."""
    if not has_limit(summary):
        return
    line = limit_line(summary)
    is_work = summary.get("limit_cause", WORK) == WORK
    start = f"The replay under {scheduler} reaches" if is_work else f"Replayed under {scheduler},"
    yield f"{start} {line}."


def concurrency_lines(found: Diagnosis) -> list[str]:
    """Return a sentence on the concurrent requests in a log without token counts."""
    table = found.log.table
    known = np.isfinite(table.end_s)
    if found.log.counted or not known.any():
        return []
    starts, ends = table.arrival_s[known], table.end_s[known]
    # If a request ends when another request starts, the end is counted before the start.
    times = np.concatenate([ends, starts])
    change = np.repeat([-1, 1], len(starts))
    order = np.argsort(times, kind="stable")
    active = np.cumsum(change[order])
    most = int(np.argmax(active))
    clock, at_s = found.log.traffic.clock, float(times[order][most]) + found.log.offset_s
    when = clock.at(at_s) if clock else f"{number(at_s)} s"
    span_s = float(times.max() - times.min())
    mean = f", {number(float((ends - starts).sum()) / span_s)} on average" if span_s else ""
    return [f"At most {active[most]:,} requests were in progress at once (at {when}){mean}."]


def replica_line(found: Diagnosis) -> str:
    """Return a sentence on how many replicas meet the targets under each planned scheduler."""
    assert found.plan is not None
    programs = found.replays[0].summary["latency"] == "program"
    line = needed_line(found.plan, programs=programs)
    return _marked(line) if unlike_replay(found) else line


def basis_lines(found: Diagnosis) -> Iterator[str]:
    """Yield sentences on a diagnosis's assumptions, such as the simulated cluster."""
    if not found.log.counted:
        yield (
            "The log has no token counts: all requests count alike, nothing is replayed, and no "
            "number of replicas is planned. Give the columns with --map input_tokens=COLUMN and "
            "--map output_tokens=COLUMN if the log has such columns."
        )
    yield from _cluster_lines(found)
    if not found.log.measured and found.first is not None:
        yield "The log has no latencies, so waits are taken from the replays."
    if why := found.log.stalls["notes"].get("stalls"):
        yield f"Stalls of answers are unknown: {why}."
    if found.log.cached:
        yield (
            f"The log's cached tokens ({printable(found.log.cached)}) are not replayed, so waits "
            "and replicas may be too high. A column hash_ids replays the cache hits."
        )
    if found.log.table.left_out:
        yield f"Not replayed: {found.log.table.left_out:,} {found.log.table.who_left_out}."
    yield from found.log.notes
    if found.log.synthetic:
        yield f"SYNTHETIC: {found.log.synthetic}."


def _cluster_lines(found: Diagnosis) -> Iterator[str]:
    if not found.replays:
        return
    summary = found.replays[0].summary
    replicas = f"{found.dp} replica{'s' if found.dp > 1 else ''}"
    why = (
        ""
        if found.dp_given
        else ", the fewest that serve the load without floods (set your own number with --dp)"
    )
    yield f"Simulated on {replicas} of {summary['timing_profile']}{why}."
    total, played = len(found.log.table), summary["num_requests"]
    if played < total:
        share = percent(played / total)
        when = window(*found.part_s, found.log.traffic.clock)
        yield f"Replayed: {played:,} of {total:,} requests ({share}), those from {when}."
    if warm_up_s := summary.get("window_start_s"):
        start_s = found.part_s[0]
        times = (start_s + warm_up_s, start_s + summary["window_end_s"])
        when = window(*times, found.log.traffic.clock)
        yield f"The table's tok/s are of the replay from {when}, after the warm-up."
    if is_extrapolated(summary):
        outside = written(summary, "outside_fit_ratio")
        yield f"{outside} of the GPU time is outside the range of the profile's fit."


def missing_lines(found: Diagnosis) -> Iterator[str]:
    """If the diagnosis was interrupted, yield a sentence that names its missing parts."""
    if found.missing:
        yield f"Interrupted. Missing: {', '.join(found.missing)}."


def diagnosis_title(found: Diagnosis) -> str:
    """Return the result in a few words, as the title of a page."""
    causes = found.log.stalls.get("stall_causes", ())
    by = next((row["by"] for row in causes if row["by"] not in (None, row["client"])), None)
    staller = f"prompts of {printable(by)} stall other clients' answers" if by else ""
    if len(found.log.traffic.client) < LEAST_REQUESTS:
        few = "Too few requests"
        return f"{few} to find a flood, but {staller}" if staller else f"{few} for a diagnosis"
    if not found.floods:
        also = "the servers are overloaded" if overload_in(found) else staller
        return f"{NOBODY}, but {also}" if also else NOBODY
    names = ", ".join(printable(name) for name in found.heavy)
    verb = "floods" if len(found.heavy) == 1 else "flood"
    if not found.waits.knows_waits:
        return f"{names} {verb}"
    if found.harm is None:
        return f"{names} {verb}, nobody waits"
    count = len(found.harm.victims)
    return f"{names} {verb}, {count:,} client{'s wait' if count > 1 else ' waits'}"


def log_line(found: Diagnosis) -> str:
    """Return a line that describes the log, such as its size and period."""
    log = found.log
    count, clients = len(log.traffic.client), len(log.traffic.clients)
    return (
        f"{printable(log.file)}: {count:,} request{'s' if count != 1 else ''} of "
        f"{clients:,} client"
        f"{'s' if clients != 1 else ''} in {log.traffic.span_s:,.0f} s ({log.format})"
    )


WIDTH = 80


def diagnosis_text(found: Diagnosis, *, colour: bool = False, width: int = WIDTH) -> str:
    """Return the diagnosis as text with at most ``width`` characters per line."""
    return printed(_rendered(found), colour=colour, width=min(width, WIDTH))


def _rendered(found: Diagnosis) -> RenderableType:
    answers = Table.grid(padding=(0, 1, 0, 0))
    for line in answer_lines(found):
        answers.add_row("-", Text(line))
    title = Text(diagnosis_title(found), style="bold")
    blocks: list[RenderableType] = [title, Text(log_line(found)), Text(), answers, Text()]
    if found.replays:
        replays = plain_table(*headings(found))
        for row in replay_rows(found):
            replays.add_row(*row)
        blocks += [replays, Text()]
    blocks += [Text(line, style="dim") for line in basis_lines(found)]
    return Group(*blocks, *(Text(line, style="bold") for line in missing_lines(found)))


def headings(found: Diagnosis, *, whole: bool = False) -> list[str]:
    """Return the headings of the table of replays.

    Headings have two lines, or a single line if ``whole`` is True. A P95 column's heading has an
    empty first line, because the P50 column's heading names the quantity.
    """
    who = "others" if found.floods else "all clients"
    heavy = cut_middle(found.heavy[0], NAME) if len(found.heavy) == 1 else "heavy clients"
    first = "replay under" if logged_waits(found) is None else "scheduler"
    split = ", " if whole else "\n"
    p95 = f"TTFT of {who}, s, P95" if whole else "\nP95"
    own = [f"TTFT of {heavy}, s{split}P50"] if found.floods else []
    between = " " if whole else "\n"
    rest = [f"share in{between}worst 60 s", f"service,{between}tok/s"]
    return [first, f"TTFT of {who}, s{split}P50", p95, *own, *rest]


NAME = 13


def replay_rows(found: Diagnosis) -> list[list[str]]:
    """Return the table's rows: one for the log if the log has waits, and one for each replay.

    The first row, for the log itself, shows only waits, because all other columns require a replay.
    """
    recorded = logged_waits(found)
    table = [] if recorded is None else [_row(found, AS_RECORDED, recorded, {})]
    waits = ((run, others_waits(run.traffic, found)) for run in found.replays)
    return [*table, *(_row(found, run.scheduler, one, run.summary) for run, one in waits)]


def _row(
    found: Diagnosis, name: str, waits: Mapping[str, float | None], summary: Mapping[str, Any]
) -> list[str]:
    own = [seconds(waits["heavy_p50_s"])] if found.floods else []
    ranks = [seconds(waits["others_p50_s"]), seconds(waits["others_p95_s"])]
    fairness, rate = (summary.get(key) for key in OF_REPLAYS)
    return [name, *ranks, *own, percent(fairness), whole(rate)]


OF_REPLAYS = ("min_share_60s", "service_rate_tok_s")
AS_RECORDED = "as recorded"


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as JSON types, with times in seconds from the first request."""
    log, first, unlike = found.log, found.first, unlike_replay(found)
    summary = found.replays[0].summary if found.replays else {}
    return {
        "file": log.file,
        "format": log.format,
        "sha256": log.sha256,
        "requests": len(log.traffic.client),
        "clients": len(log.traffic.clients),
        "span_s": log.traffic.span_s,
        "began": None if log.traffic.clock is None else log.traffic.clock.iso,
        "waits": log.measured or (f"replayed under {first.scheduler}" if first else None),
        "floods": [
            {**_finite(one._asdict()), "client": log.traffic.clients[one.client]}
            for one in found.floods
        ],
        "harm": None if found.harm is None else _harm(found, found.harm),
        "stalls": stalls_in(found),
        "replayed_requests": summary.get("num_requests"),
        "replayed_programs": summary.get("num_programs"),
        "replayed_from_s": found.part_s[0],
        "replayed_to_s": found.part_s[1],
        "timing_profile": summary.get("timing_profile"),
        "dp": found.dp,
        "replay_is_like_log": unlike is None if log.measured == FIRST_TOKEN and first else None,
        "judged_from_s": found.judged_s[0][0],
        "judged_to_s": found.judged_s[-1][1],
        "judged_s": found.judged_s,
        "recorded": logged_waits(found),
        "schedulers": [
            {
                "scheduler": run.scheduler,
                **_finite(dict(others_waits(run.traffic, found))),
                **{key: run.summary.get(key) for key in OF_REPLAYS},
            }
            for run in found.replays
        ],
        "plan": found.plan,
        "missing": list(found.missing),
    }


def _harm(found: Diagnosis, harm: Harm) -> dict[str, Any]:
    victims = [
        {**_finite(one._asdict()), "client": found.waits.clients[one.client]}
        for one in harm.victims
    ]
    parts = [_harm(found, one) for one in harm.parts]
    return {**_finite(harm._asdict()), "victims": victims, "parts": parts}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == inf else value for key, value in values.items()}
