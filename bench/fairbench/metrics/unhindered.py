"""The duration of calls without delays, as far as a run's records show it.

Only the tables are used, so that simulated, live, stored and external runs are judged alike. A
call is compared with the fastest calls of its own run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairbench.metrics.records import FINISHED, REFUSED, Floats, Ints, Requests

FASTEST = 3  # which answer gives the pace: one or two that are faster may be hiccups of a stream
MANY_TOKENS = 16  # in an answer; the pace of shorter ones is mostly rounding


@dataclass(frozen=True, slots=True, eq=False)
class Unhindered:
    """The time of each call without delays: to the first token, per further token, total.

    ``lost_s`` is how much longer it did take, or has taken when the run ended.
    """

    first_token_s: Floats
    per_token_s: float
    latency_s: Floats
    lost_s: Floats


def unhindered(requests: Requests, output_tokens: Floats, horizon_s: float) -> Unhindered:
    """Return every call as if it had run alone.

    The first token comes after the run's shortest time for a call with at least as much to compute.
    A call that was never admitted counts its whole input. The other tokens come at the pace of one
    of the fastest answers.

    Args:
        requests: Table of the run's requests.
        output_tokens: Output tokens of each request, shape (n_requests,).
        horizon_s: End of the run, in seconds.
    """
    first_s, pace_s = first_token_alone_s(requests), pace_alone_s(requests)
    latency_s = first_s + pace_s * np.maximum(0, output_tokens - 1)
    ended_s = np.where(np.isnan(requests.finish_s), horizon_s, requests.finish_s)
    taken_s = np.maximum(0.0, ended_s - requests.arrival_s)
    # Nothing of a refused call was ever under way.
    lost_s = np.where(requests.status == REFUSED, taken_s, np.maximum(0.0, taken_s - latency_s))
    return Unhindered(first_s, pace_s, latency_s, lost_s)


def unqueued(requests: Requests, output_tokens: Floats, horizon_s: float) -> Unhindered:
    """Return the times of all calls as they would be without the wait for admission.

    The time from arrival to first token equals the actual time from admission to first token. The
    other tokens come at the median pace. Only the wait for admission is lost, or all of a refused
    call.

    Args:
        requests: Table of the run's requests.
        output_tokens: Output tokens of each request, shape (n_requests,).
        horizon_s: End of the run, in seconds.
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


def median_pace_s(requests: Requests) -> float:
    """Return the median time per token after the first, over finished answers."""
    chosen = (requests.status == FINISHED) & (requests.output_tokens >= 2)
    if not chosen.any():
        return pace_alone_s(requests)
    spent_s = (requests.finish_s - requests.first_token_s)[chosen]
    return float(np.median(spent_s / (requests.output_tokens[chosen] - 1)))


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
        chosen = (requests.status == FINISHED) & (requests.output_tokens >= least)
        if chosen.any():
            spent_s = (requests.finish_s - requests.first_token_s)[chosen]
            pace = np.sort(spent_s / (requests.output_tokens[chosen] - 1))
            return float(pace[min(FASTEST, len(pace)) - 1])
    return 0.0
