"""Whether a run was contended: who was kept waiting, and backlogs that no queue shows."""

from __future__ import annotations

from collections.abc import Mapping
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
from fairbench.metrics.unhindered import MANY_TOKENS, first_token_alone_s, pace_alone_s
from fairbench.metrics.waiting import waits

# 128 running requests of 1,000 tokens, about what operators allow, take 2.6 times as long for a
# token as one alone (A100, 8B); trees at 1.5 times the capacity, none of them waiting, 16 to 25.
SLOW = 4.0
MOSTLY = 0.5  # of the window without any request waiting


def lone_tpot_ratio(tables: Tables, facts: Facts) -> float:
    """Return the median time per output token, relative to that of a lone request.

    Alone is a decode step of the timing profile with the request's own mean context and nothing
    else. NaN without a profile, or if no request that arrived in the window finished with two
    tokens or more.
    """
    if facts.lone is None:
        return float("nan")
    all_of = tables.requests
    window = facts.window
    inside = (all_of.arrival_s >= window.start_s) & (all_of.arrival_s < window.end_s)
    own = all_of.take(inside & (all_of.status == FINISHED) & (all_of.output_tokens > 1))
    if not len(own):
        return float("nan")
    tpot_s = (own.finish_s - own.first_token_s) / (own.output_tokens - 1)
    context = own.input_tokens + own.output_tokens / 2
    alone_s = facts.lone.step_s + facts.lone.context_token_s * context
    return float(np.median(tpot_s / alone_s))


def hides_backlog(summary: Mapping[str, Any]) -> bool:
    """Return whether queues were mostly empty in the window although tokens were slow."""
    slow, empty = summary.get("lone_tpot_ratio"), summary.get("queue_empty_share")
    return slow is not None and empty is not None and bool(slow > SLOW and empty > MOSTLY)


SHORT_ABOVE = 0.05  # of what was due, or of the time of its calls: below, nothing was withheld
SERVING_AT_ONCE = 2.0  # a first token may take so many times the least, and nobody waited


def contended(
    requests: Requests, facts: Facts, window: Window, short: Floats, demand: Floats
) -> bool:
    """Return whether some client was short of service in the window.

    A client is short in one of three cases. It lacked (``short``) 5% of its ``demand`` in
    tokens at the window's end; its calls spent over 5% of their time queued; or one of its
    calls was refused. A slight delay by a larger batch is no shortage (``served_at_once``).
    """
    refused = (requests.status == REFUSED) & _within(requests.arrival_s, window)
    if refused.any() or np.any(waiting_share(requests, facts, window) > SHORT_ABOVE):
        return True
    return bool(np.any(short > SHORT_ABOVE * demand)) and not served_at_once(requests)


def served_at_once(requests: Requests) -> bool:
    """Return whether tokens came at a usual pace, so that missing service is no shortage.

    Larger batches slow every answer a little. Only above ``SLOW`` times the run's own fastest pace
    do they hide a backlog (``hidden_backlog``). False where some call was never answered.
    """
    paced = (requests.status == FINISHED) & (requests.output_tokens >= MANY_TOKENS)
    if not paced.any() or np.isnan(requests.first_token_s).any():
        return False
    spent_s = (requests.finish_s - requests.first_token_s)[paced]
    pace = spent_s / (requests.output_tokens[paced] - 1)
    return bool(np.median(pace) <= SLOW * pace_alone_s(requests))


def waiting_share(requests: Requests, facts: Facts, window: Window) -> Floats:
    """Return the queued fraction of each client's call time in the window; 0 without calls.

    Args:
        requests: Table of the run's requests.
        facts: Facts about the run that the tables do not contain.
        window: The time window, in seconds.

    Returns:
        Fractions in [0, 1], shape (n_clients,).
    """
    clients = len(facts.clients)
    sums = [
        np.bincount(client, weights=_overlap(start_s, end_s, window), minlength=clients)
        for client, start_s, end_s in call_times(requests, facts)
    ]
    waited_s, lasted_s = sums
    return np.divide(waited_s, lasted_s, out=np.zeros(clients), where=lasted_s > 0)


Times: TypeAlias = tuple[Ints, Floats, Floats]
"""Clients, and the start and the end of an interval of each, in seconds."""


def call_times(requests: Requests, facts: Facts) -> tuple[Times, Times]:
    """Return when calls waited in a queue and when they were open, without refused calls."""
    horizon_s = facts.horizon_s
    columns = requests.to_columns()
    columns.pop("routed_s", None)  # each call waits once, wherever that was
    columns["worker"] = np.maximum(0, requests.worker)  # also what is held back waits
    queued = waits(Requests.from_columns(columns), horizon_s)
    calls = requests.take(requests.status != REFUSED)
    ended_s = np.where(calls.status == UNFINISHED, horizon_s, calls.finish_s)
    return (queued.client, queued.start, queued.end), (calls.client, calls.arrival_s, ended_s)


def admission_unknown(requests: Requests) -> Flags:
    """Return which answered calls lack a reported admission.

    Their tables put the admission at the first token; a prefill that takes no time never occurs
    otherwise.
    """
    unknown: Flags = requests.admitted_s == requests.first_token_s
    return unknown


def with_admissions(requests: Requests) -> Requests:
    """Return the calls with unknown admissions estimated from the time to first token.

    The time beyond twice the run's minimum for an input of that size counts as queued.
    """
    unknown = admission_unknown(requests)
    if not unknown.any():
        return requests
    at_once_s = SERVING_AT_ONCE * first_token_alone_s(requests)
    estimate = np.maximum(requests.arrival_s, requests.first_token_s - at_once_s)
    columns = requests.to_columns()
    columns["admitted_s"] = np.where(unknown, estimate, requests.admitted_s)
    return Requests.from_columns(columns)


def _within(times_s: Floats, window: Window) -> Flags:
    inside: Flags = (times_s >= window.start_s) & (times_s < window.end_s)
    return inside


def _overlap(start_s: Floats, end_s: Floats, window: Window) -> Floats:
    """Return the length of each interval's part inside the window."""
    inside: Floats = np.minimum(end_s, window.end_s) - np.maximum(start_s, window.start_s)
    return np.maximum(0.0, inside)
