"""Whether a run was contended: the clients that waited, and backlogs that no queue shows.

Calls are compared with the fastest calls of their own run, using only its tables, so that
simulated, live, stored and external runs are judged equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Facts,
    Flags,
    Floats,
    Ints,
    Requests,
    Window,
)
from fairbench.metrics.tables import Tables
from fairbench.metrics.waiting import waits

# rank of the answer that gives the pace: one or two faster answers may be hiccups of a stream
FASTEST = 3
MANY_TOKENS = 16  # tokens of an answer; the pace of shorter answers is mostly rounding


@dataclass(frozen=True, slots=True, eq=False)
class Unhindered:
    """The time of each call without delays: to the first token, per further token, total.

    ``lost_s`` is the delay so far: the actual time, up to the end of the run, minus this time.
    """

    first_token_s: Floats
    per_token_s: float
    latency_s: Floats
    lost_s: Floats


def unhindered(requests: Requests, output_tokens: Floats, horizon_s: float) -> Unhindered:
    """Return every call as if it had run alone.

    The first token comes after the run's shortest time for a call with at least as much to compute.
    The whole input of a call that was never admitted counts. The other tokens come at the pace of
    one of the fastest answers.
    """
    first_s, pace_s = first_token_alone_s(requests), pace_alone_s(requests)
    latency_s = first_s + pace_s * np.maximum(0, output_tokens - 1)
    ended_s = np.where(np.isnan(requests.finish_s), horizon_s, requests.finish_s)
    taken_s = np.maximum(0.0, ended_s - requests.arrival_s)
    # A refused call was never in progress.
    lost_s = np.where(requests.status == REFUSED, taken_s, np.maximum(0.0, taken_s - latency_s))
    return Unhindered(first_s, pace_s, latency_s, lost_s)


def unqueued(requests: Requests, output_tokens: Floats, horizon_s: float) -> Unhindered:
    """Return the times of all calls as they would be without the wait for admission.

    The time from arrival to first token equals the actual time from admission to first token. The
    other tokens come at the median pace. Only the wait for admission counts as lost, or the whole
    time of a refused call.
    """
    first_s = first_token_alone_s(requests)
    admitted = ~np.isnan(requests.admitted_s)
    answered = admitted & ~np.isnan(requests.first_token_s)
    first_s[answered] = (requests.first_token_s - requests.admitted_s)[answered]
    pace_s = median_pace_s(requests)
    latency_s = first_s + pace_s * np.maximum(0, output_tokens - 1)
    ended_s = np.where(np.isnan(requests.finish_s), horizon_s, requests.finish_s)
    begun_s = np.where(admitted, requests.admitted_s, ended_s)
    until_s = np.where(requests.status == REFUSED, ended_s, begun_s)
    return Unhindered(first_s, pace_s, latency_s, np.maximum(0.0, until_s - requests.arrival_s))


def _paces_s(requests: Requests, least: int) -> Floats:
    """Return the time per token after the first, for finished answers of enough tokens."""
    chosen = (requests.status == FINISHED) & (requests.output_tokens >= least)
    spent_s = (requests.finish_s - requests.first_token_s)[chosen]
    paces_s: Floats = spent_s / (requests.output_tokens[chosen] - 1)
    return paces_s


def median_pace_s(requests: Requests) -> float:
    """Return the median time per token after the first, over finished answers."""
    paces_s = _paces_s(requests, 2)
    return float(np.median(paces_s)) if len(paces_s) else pace_alone_s(requests)


def first_token_alone_s(requests: Requests) -> Floats:
    """Return, per call, the shortest time to first token of calls with at least its input."""
    answered = ~np.isnan(requests.first_token_s)
    if not answered.any():
        return np.zeros(len(requests))
    computed: Ints = np.where(
        np.isnan(requests.admitted_s), requests.input_tokens, requests.extend_tokens
    )
    order = np.argsort(computed[answered], kind="stable")
    waited_s = (requests.first_token_s - requests.arrival_s)[answered][order]
    least_s = np.minimum.accumulate(waited_s[::-1])[::-1]
    found = np.searchsorted(computed[answered][order], computed, "left")
    result: Floats = least_s[np.minimum(found, len(least_s) - 1)]
    return result


def pace_alone_s(requests: Requests) -> float:
    """Return the time per token after the first, in one of the fastest answers."""
    for least in (MANY_TOKENS, 2):
        paces_s = np.sort(_paces_s(requests, least))
        if len(paces_s):
            return float(paces_s[min(FASTEST, len(paces_s)) - 1])
    return 0.0


# 128 running requests of 1,000 tokens, about the number that operators allow, take 2.6 times as
# long per token as a lone request (A100, 8B); trees at 1.5 times the capacity, none of them
# waiting, take 16 to 25 times as long.
SLOW = 4.0
MOSTLY = 0.5  # fraction of the window without any waiting request


def lone_tpot_ratio(tables: Tables, facts: Facts) -> float:
    """Return the median time per output token, relative to that of a lone request.

    The lone request is a decode step of the timing profile with the request's own mean context and
    nothing else. The ratio is NaN without a profile, or if no request that arrived in the window
    finished with two tokens or more.
    """
    if facts.lone is None:
        return float("nan")
    all_of = tables.requests
    inside = facts.window.holds(all_of.arrival_s)
    own = all_of.take(inside & (all_of.status == FINISHED) & (all_of.output_tokens > 1))
    if not len(own):
        return float("nan")
    tpot_s = (own.finish_s - own.first_token_s) / (own.output_tokens - 1)
    context = own.input_tokens + own.output_tokens / 2
    alone_s = facts.lone.step_s + facts.lone.context_token_s * context
    return float(np.median(tpot_s / alone_s))


def hides_backlog(summary: Mapping[str, Any]) -> bool:
    """Return whether queues were mostly empty in the window although tokens were slow.

    In an engine that admits every request, demand above capacity makes the batch larger and its
    steps longer instead of a queue. The scheduler then has no requests to reorder.
    """
    slow, empty = summary.get("lone_tpot_ratio"), summary.get("queue_empty_share")
    return slow is not None and empty is not None and bool(slow > SLOW and empty > MOSTLY)


# fraction of the service due, or of the calls' time, below which no shortage is seen
SHORT_ABOVE = 0.05
SERVING_AT_ONCE = 2.0  # multiple of the shortest first-token time that counts as no wait


def contended(
    requests: Requests, facts: Facts, window: Window, short: Floats, demand: Floats
) -> bool:
    """Return whether some client was short of service in the window.

    A client is short in one of three cases. The client lacked (``short``) 5% of its ``demand`` in
    tokens at the window's end; its calls were queued for over 5% of their time; or one of its calls
    was refused. A slight delay by a larger batch is no shortage (``served_at_once``).
    """
    refused = (requests.status == REFUSED) & window.holds(requests.arrival_s)
    if refused.any() or np.any(waiting_share(requests, facts, window) > SHORT_ABOVE):
        return True
    return bool(np.any(short > SHORT_ABOVE * demand)) and not served_at_once(requests)


def served_at_once(requests: Requests) -> bool:
    """Return whether tokens came at a usual pace, so that missing service is no shortage.

    Larger batches slow every answer a little. Only above ``SLOW`` times the run's own fastest pace
    do they hide a backlog (``hides_backlog``). The result is False if some call was never answered.
    """
    paces_s = _paces_s(requests, MANY_TOKENS)
    if not len(paces_s) or np.isnan(requests.first_token_s).any():
        return False
    return bool(np.median(paces_s) <= SLOW * pace_alone_s(requests))


def waiting_share(requests: Requests, facts: Facts, window: Window) -> Floats:
    """Return the queued fraction of each client's call time in the window; 0 without calls."""
    clients = len(facts.clients)
    sums = []
    for client, start_s, end_s in call_times(requests, facts):
        inside_s = np.minimum(end_s, window.end_s) - np.maximum(start_s, window.start_s)
        sums.append(np.bincount(client, np.maximum(0.0, inside_s), minlength=clients))
    waited_s, lasted_s = sums
    return np.divide(waited_s, lasted_s, out=np.zeros(clients), where=lasted_s > 0)


Times: TypeAlias = tuple[Ints, Floats, Floats]
"""Clients, and the start and the end of an interval of each, in seconds."""


def call_times(requests: Requests, facts: Facts) -> tuple[Times, Times]:
    """Return when calls waited in a queue and when they were open, without refused calls."""
    horizon_s = facts.horizon_s
    columns = requests.to_columns()
    columns.pop("routed_s", None)  # each call waits once, at whichever place
    columns["worker"] = np.maximum(0, requests.worker)  # queued requests wait, too
    queued = waits(Requests.from_columns(columns), horizon_s)
    calls = requests.take(requests.status != REFUSED)
    ended_s = np.where(calls.status == UNFINISHED, horizon_s, calls.finish_s)
    return (queued.client, queued.start, queued.end), (calls.client, calls.arrival_s, ended_s)


def admission_unknown(requests: Requests) -> Flags:
    """Return which answered calls lack a reported admission.

    Their tables put the admission at the first token; no other prefill takes no time.
    """
    unknown: Flags = requests.admitted_s == requests.first_token_s
    return unknown


def with_admissions(requests: Requests) -> Requests:
    """Return the calls with unknown admissions estimated from the time to first token.

    The time to first token beyond twice the run's minimum for an input of that size counts as
    queued.
    """
    unknown = admission_unknown(requests)
    if not unknown.any():
        return requests
    at_once_s = SERVING_AT_ONCE * first_token_alone_s(requests)
    estimate = np.maximum(requests.arrival_s, requests.first_token_s - at_once_s)
    columns = requests.to_columns()
    columns["admitted_s"] = np.where(unknown, estimate, requests.admitted_s)
    return Requests.from_columns(columns)
