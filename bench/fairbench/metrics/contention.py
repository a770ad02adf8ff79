"""Contention in a run: calls that wait, service that is missing, and tokens that come slowly.

Calls are compared with the fastest calls of the same run, so that simulated, live and external runs
are judged by one rule.
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
from fairbench.metrics.waiting import waits

# To find the fastest pace of a run, the two fastest answers are ignored, because an answer that
# stalled and then delivered many tokens at once can look faster than the engine.
FASTEST = 3
# The pace of tokens is measured on answers of at least ``MANY_TOKENS`` tokens, because rounding
# distorts the pace of shorter answers.
MANY_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Unhindered:
    """The times that each call would have taken without delays, in seconds.

    - ``first_token_s`` is the time from arrival to the first token.
    - ``per_token_s`` is the time for each token after the first token.
    - ``latency_s`` is the time from arrival to the last token.
    - ``lost_s`` is the delay of the call: its measured latency minus ``latency_s``. The measured
      latency of an unfinished call ends with the run.
    """

    first_token_s: Floats
    per_token_s: float
    latency_s: Floats
    lost_s: Floats


def unhindered(requests: Requests, output_tokens: Floats, horizon_s: float) -> Unhindered:
    """Estimate the times that each call would have taken if it had run alone.

    The time to first token of a call is estimated as the shortest among all calls with at least as
    many uncached input tokens. All input of a call that was never admitted counts as uncached.
    After the first token, output is assumed to come at the run's fastest pace (``pace_alone_s``).

    Args:
        requests: The calls.
        output_tokens: The full length of each answer, shape (n_requests,).
        horizon_s: The end of the run in seconds.
    """
    first_s, pace_s = first_token_alone_s(requests), pace_alone_s(requests)
    latency_s = first_s + pace_s * np.maximum(0, output_tokens - 1)
    ended_s = np.where(np.isnan(requests.finish_s), horizon_s, requests.finish_s)
    taken_s = np.maximum(0.0, ended_s - requests.arrival_s)
    # A refused call was never in progress, so its whole time counts as delay.
    lost_s = np.where(requests.status == REFUSED, taken_s, np.maximum(0.0, taken_s - latency_s))
    return Unhindered(first_s, pace_s, latency_s, lost_s)


def unqueued(requests: Requests, output_tokens: Floats, horizon_s: float) -> Unhindered:
    """Estimate the times that each call would have taken without waiting for admission.

    Without a wait, a call's time to first token would be the measured time from admission to the
    first token. Later output tokens are assumed to come at the run's median pace. The delay of a
    call is its wait for admission, or the whole time of a refused call. The arguments are described
    at ``unhindered``.
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
    chosen = (requests.status == FINISHED) & (requests.output_tokens >= least)
    spent_s = (requests.finish_s - requests.first_token_s)[chosen]
    paces_s: Floats = spent_s / (requests.output_tokens[chosen] - 1)
    return paces_s


def median_pace_s(requests: Requests) -> float:
    """Return the median time per token after the first, in seconds, over finished answers."""
    paces_s = _paces_s(requests, 2)
    return float(np.median(paces_s)) if len(paces_s) else pace_alone_s(requests)


def first_token_alone_s(requests: Requests, tokens: Ints | None = None) -> Floats:
    """Estimate the time to first token, in seconds, of each call if it ran alone.

    A call's estimate is the shortest time to first token among all calls with at least as much work
    as this call. ``tokens`` is the work of each call in tokens; by default, the work is the number
    of uncached prompt tokens.
    """
    answered = ~np.isnan(requests.first_token_s)
    if not answered.any():
        return np.zeros(len(requests))
    computed: Ints = np.where(
        np.isnan(requests.admitted_s), requests.input_tokens, requests.extend_tokens
    )
    order = np.argsort(computed[answered], kind="stable")
    waited_s = (requests.first_token_s - requests.arrival_s)[answered][order]
    least_s = np.minimum.accumulate(waited_s[::-1])[::-1]
    work = computed if tokens is None else tokens
    found = np.searchsorted(computed[answered][order], work, "left")
    result: Floats = least_s[np.minimum(found, len(least_s) - 1)]
    return result


def pace_alone_s(requests: Requests) -> float:
    """Return the fastest pace of answers in the run (``FASTEST``), in seconds per token."""
    for least in (MANY_TOKENS, 2):
        paces_s = np.sort(_paces_s(requests, least))
        if len(paces_s):
            return float(paces_s[min(FASTEST, len(paces_s)) - 1])
    return 0.0


# Tokens are slow if each takes more than ``SLOW`` times as long as for a request that runs alone.
# On an A100 with an 8B model, a token takes 2.6 times as long in a batch of 128 requests of 1,000
# tokens as in a batch of one request. If an engine admits every request of a tree-of-thoughts load
# at 1.5 times its capacity, a token takes 16 to 25 times as long as in a batch of one request.
SLOW = 4.0
MOSTLY = 0.5  # Queues are mostly empty if they are empty for more than this fraction of the window.


def lone_tpot_ratio(all_of: Requests, facts: Facts) -> float:
    """Return the median slowdown per output token, compared with a request that runs alone.

    The timing profile gives the time per token of a lone request with an equal mean context. The
    slowdown is NaN without a timing profile, or if no request that arrived in the window has
    finished with at least two output tokens.
    """
    if facts.lone is None:
        return float("nan")
    inside = facts.window.holds(all_of.arrival_s)
    own = all_of.take(inside & (all_of.status == FINISHED) & (all_of.output_tokens > 1))
    if not len(own):
        return float("nan")
    tpot_s = (own.finish_s - own.first_token_s) / (own.output_tokens - 1)
    context = own.input_tokens + own.output_tokens / 2
    alone_s = facts.lone.step_s + facts.lone.context_token_s * context
    return float(np.median(tpot_s / alone_s))


def hides_backlog(summary: Mapping[str, Any]) -> bool:
    """Return whether queues were mostly empty in the window although tokens came slowly.

    If an engine admits every request, demand above its capacity forms no queue but makes batches
    larger and steps longer.
    """
    slow, empty = summary.get("lone_tpot_ratio"), summary.get("queue_empty_share")
    return slow is not None and empty is not None and bool(slow > SLOW and empty > MOSTLY)


# A client lacks service if more than 5% of its due service is missing, or if its calls queue for
# more than 5% of their time.
SHORT_ABOVE = 0.05
# A call counts as served without a wait if its time to first token is at most twice the shortest
# time to first token of calls with equal work.
SERVING_AT_ONCE = 2.0


def contended(
    requests: Requests, facts: Facts, window: Window, short: Floats, demand: Floats
) -> bool:
    """Return whether at least one client got too little service in the window.

    A client's service counts as too low if a call was refused, or if the client's calls were queued
    for more than 5% of their time. Unless ``served_at_once`` is true, a client also got too little
    service if more than 5% of its due service was missing at the window's end.

    Args:
        requests: All calls of the run.
        facts: Facts about the run that the tables do not contain, such as workers and KV pool.
        window: The period of the run in which shares are computed.
        short: The weighted tokens that each client still lacks of its due service at the end of
            ``window``.
        demand: The due service of each client in the window, in weighted tokens.
    """
    refused = (requests.status == REFUSED) & window.holds(requests.arrival_s)
    if refused.any() or np.any(waiting_share(requests, facts, window) > SHORT_ABOVE):
        return True
    return bool(np.any(short > SHORT_ABOVE * demand)) and not served_at_once(requests)


def served_at_once(requests: Requests) -> bool:
    """Return whether all calls were answered, and at least half with hardly any delay.

    The median time per token may be ``SLOW`` times that of the fastest answers, because requests
    decode more slowly in a larger batch.
    """
    paces_s = _paces_s(requests, MANY_TOKENS)
    if not len(paces_s) or np.isnan(requests.first_token_s).any():
        return False
    return bool(np.median(paces_s) <= SLOW * pace_alone_s(requests))


def waiting_share(requests: Requests, facts: Facts, window: Window) -> Floats:
    """Return the fraction of each client's total call time that was spent in the queue.

    A client without calls has the waiting fraction 0. The result has the shape (n_clients,).
    """
    clients = len(facts.clients)
    sums = []
    for client, start_s, end_s in call_times(requests, facts):
        inside_s = np.minimum(end_s, window.end_s) - np.maximum(start_s, window.start_s)
        sums.append(np.bincount(client, np.maximum(0.0, inside_s), minlength=clients))
    waited_s, lasted_s = sums
    return np.divide(waited_s, lasted_s, out=np.zeros(clients), where=lasted_s > 0)


Times: TypeAlias = tuple[Ints, Floats, Floats]
"""Intervals of clients: arrays of client indices, of start times (s) and of end times (s)."""


def call_times(requests: Requests, facts: Facts) -> tuple[Times, Times]:
    """Return the intervals in which calls were queued, and in which they were in progress."""
    horizon_s = facts.horizon_s
    columns = requests.to_columns()
    columns.pop("routed_s", None)  # Waits at the router and at a worker are one wait.
    # A call that no worker has received yet counts as waiting at worker 0.
    columns["worker"] = np.maximum(0, requests.worker)
    queued = waits(Requests.from_columns(columns), horizon_s)
    calls = requests.take(requests.status != REFUSED)
    ended_s = np.where(calls.status == UNFINISHED, horizon_s, calls.finish_s)
    return (queued.client, queued.start, queued.end), (calls.client, calls.arrival_s, ended_s)


def admission_unknown(requests: Requests) -> Flags:
    """Return a mask of the answered calls whose admission time was not reported.

    If a call's admission time was not reported, the tables contain the time of the call's first
    token instead. A reported admission is always earlier than the first token, because a prefill
    takes time.
    """
    unknown: Flags = requests.admitted_s == requests.first_token_s
    return unknown


def with_admissions(requests: Requests) -> Requests:
    """Return the calls, with unknown admission times estimated from the times to first token.

    A call's estimated wait is its TTFT minus twice the TTFT that it would have alone
    (``first_token_alone_s``), or 0 if negative.
    """
    unknown = admission_unknown(requests)
    if not unknown.any():
        return requests
    at_once_s = SERVING_AT_ONCE * first_token_alone_s(requests)
    estimate = np.maximum(requests.arrival_s, requests.first_token_s - at_once_s)
    columns = requests.to_columns()
    columns["admitted_s"] = np.where(unknown, estimate, requests.admitted_s)
    return Requests.from_columns(columns)
