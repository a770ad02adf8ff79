"""The answers of a diagnosis in sentences, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from fairbench.diagnosis.access_log import FIRST_TOKEN, RESPONSE
from fairbench.diagnosis.diagnosis import Diagnosis, best_fair, others_waits, unlike_replay
from fairbench.diagnosis.replay import Replayed
from fairbench.errors import printable
from fairbench.metrics.floods import LEAST_REQUESTS
from fairbench.metrics.traffic import LONG_S, Overload, overload_of
from fairbench.report.numbers import number, percent, written
from fairbench.report.result_lines import is_extrapolated
from fairbench.report.traffic_lines import flood_line, harm_line, overload_line, window, window_list

NOBODY = "Nobody floods"
NOT_YOURS = "Only on the simulated cluster, not on yours"
ONE_CLIENT = "There is one client, so none floods the others."
NO_FLOOD = "There is no flood: no client sends 3 times the mean of the others and 10% of the load."


def flood_lines(found: Diagnosis) -> Iterator[str]:
    """Yield a sentence for each flood, or a sentence that there is none."""
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
        yield flood_line(found.log.traffic, one, several=len(found.floods) > 1)


def harm_lines(found: Diagnosis) -> Iterator[str]:
    """Yield sentences on the harmed clients and the time, by recorded or replayed waits."""
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
    return "as recorded" if found.log.measured else f"in the replay under {found.present}"


def overload_in(found: Diagnosis) -> Overload | None:
    """Return the time in which most clients wait without a flood, if any."""
    if found.floods or found.log.measured == RESPONSE or not found.waits.knows_waits:
        return None
    return overload_of(found.waits)


def change_lines(found: Diagnosis) -> Iterator[str]:
    """Yield sentences on the effect of the best fair scheduler, and on the replay's likeness."""
    first = found.first
    if first is None:
        return
    unlike = unlike_replay(found)
    if unlike is not None:
        yield (
            f"The replay is not like your cluster: the log has a TTFT P95 of "
            f"{number(unlike.logged_s)} s for these requests, the replay under {first.scheduler} "
            f"{number(unlike.replayed_s)} s. Name your cluster with --gpu, --model and --dp."
        )
    for line in _change_line(found, first):
        yield _marked(line) if unlike else line


def _marked(line: str) -> str:
    """Return a line about a replay that does not repeat the log, marked as such."""
    return f"{NOT_YOURS}: {line[0].lower()}{line[1:]}"


def _change_line(found: Diagnosis, first: Replayed) -> Iterator[str]:
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
        why = "" if unlike_replay(found) else f" {_why(before)}"
        yield f"Fair queueing changes little: the TTFT P95 of {who} changes {change}.{why}"
    else:
        yield f"Fair queueing lowers the TTFT P95 of {who} {change}."


def _why(before_s: float) -> str:
    """Return why fair queueing changes little, by the P95 under the present scheduler."""
    if before_s <= LONG_S:
        return "The simulated replicas keep up with the load."
    return "Clients wait for the whole load, so more replicas help, not another order."


def answer_lines(found: Diagnosis) -> list[str]:
    """Return the answers in sentences: floods, harm, what fair queueing changes, replicas."""
    replicas = [replica_line(found)] if found.plan else []
    replicas += concurrency_lines(found)
    return [*flood_lines(found), *harm_lines(found), *change_lines(found), *replicas]


def concurrency_lines(found: Diagnosis) -> list[str]:
    """Return how many requests of a log without token counts were in progress at once."""
    table = found.log.table
    known = np.isfinite(table.end_s)
    if found.log.counted or not known.any():
        return []
    starts, ends = table.arrival_s[known], table.end_s[known]
    times = np.concatenate([ends, starts])  # at equal times, requests end before others begin
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
    """Return how many replicas meet the targets under each planned scheduler."""
    assert found.plan is not None
    programs = found.replays[0].summary["latency"] == "program"
    targets = " and ".join(said_target(one, programs=programs) for one in found.plan["targets"])
    counts = [
        f"{_replicas(row['replicas'], found.plan['high'])} with {row['scheduler']}"
        for row in found.plan["choices"]
    ]
    rows = found.plan["choices"]
    saved = ""
    if len(rows) > 1 and all(row["replicas"] for row in rows):
        part = 1 - rows[0]["replicas"] / rows[1]["replicas"]
        saved = f" ({part:.0%} fewer)" if part > 0 else ""
    line = f"Replicas for {targets}: {', '.join(counts)}{saved}."
    return _marked(line) if unlike_replay(found) else line


def said_target(target: dict[str, Any], *, programs: bool) -> str:
    """Return a target in words if it is a P95 of the well-behaved clients.

    With ``programs``, ``victim_p95_s`` is the latency of whole sessions.
    """
    sessions = "P95 of whole sessions" if programs else "TTFT P95"
    measured = {"victim_p95_s": sessions, "victim_ttft_p95_s": "TTFT P95"}.get(target["metric"])
    if measured is None:
        return str(target["slo"])
    return f"a {measured} below {number(target['limit'])} s (mean of the well-behaved clients)"


def basis_lines(found: Diagnosis) -> Iterator[str]:
    """Yield the assumptions of the replays: cluster, part of the log, synthetic parts."""
    if not found.log.counted:
        yield (
            "The log has no token counts: all requests count alike, nothing is replayed, and no "
            "number of replicas is planned. Name the columns with --map input_tokens=COLUMN and "
            "--map output_tokens=COLUMN if it has some."
        )
    yield from _cluster_lines(found)
    if not found.log.measured and found.first is not None:
        yield "The log has no latencies, so waits are taken from the replays."
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
    """Yield the simulated cluster and the replayed part of the log; nothing without a replay."""
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
    """Yield the parts that an interruption prevented; none if the diagnosis is complete."""
    if found.missing:
        yield f"Interrupted. Missing: {', '.join(found.missing)}."


def title(found: Diagnosis) -> str:
    """Return the diagnosis in a few words."""
    if len(found.log.traffic.client) < LEAST_REQUESTS:
        return "Too few requests for a diagnosis"
    if not found.floods:
        return "Nobody floods, but the servers are overloaded" if overload_in(found) else NOBODY
    names = ", ".join(printable(name) for name in found.heavy)
    verb = "floods" if len(found.heavy) == 1 else "flood"
    if not found.waits.knows_waits:
        return f"{names} {verb}"
    if found.harm is None:
        return f"{names} {verb}, nobody is hurt"
    count = len(found.harm.victims)
    return f"{names} {verb}, {count:,} client{'s wait' if count > 1 else ' waits'}"


def log_line(found: Diagnosis) -> str:
    """Return a description of the log."""
    log = found.log
    count, clients = len(log.traffic.client), len(log.traffic.clients)
    return (
        f"{printable(log.file)}: {count:,} request{'s' if count != 1 else ''} of "
        f"{clients:,} client"
        f"{'s' if clients != 1 else ''} in {log.traffic.span_s:,.0f} s ({log.format})"
    )


def _replicas(count: int | None, most: int) -> str:
    return f"more than {most}" if count is None else f"{count}"
