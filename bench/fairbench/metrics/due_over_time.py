"""The shortfall of each client at many times, without a call of ``due.shortfall`` for each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import Piecewise, portions, spread
from fairbench.metrics.contention import Unhindered, unhindered
from fairbench.metrics.due import Calls, Unmade, asked_of
from fairbench.metrics.records import REFUSED, Facts, Flags, Floats, Ints, Programs, Requests

AT_ONCE = 1_000_000  # pairs of a program and a time that are computed together


class Shortfalls(NamedTuple):
    """Weighted tokens that were due before each time and not received, shape (clients, times).

    ``refused`` is the part of ``all`` that belongs to refused programs, which are never served
    later.
    """

    all: Floats
    refused: Floats


def shortfalls(
    requests: Requests,
    programs: Programs,
    facts: Facts,
    times: Floats,
    served: Callable[[Requests, Floats, float], Unhindered] = unhindered,
) -> Shortfalls:
    """Return the shortfall of each client before each of the ascending ``times``, in seconds.

    ``served`` gives the pace at which calls were due. The cost is O(calls log times), at any load;
    programs that the end of the run cut off cost O(times) each.
    """
    calls, unmade = asked_of(requests, programs, facts, served)
    refused = requests.status == REFUSED
    open_calls = _of_calls(calls, ~refused, facts, times)
    gone = _of_calls(calls, refused, facts, times)
    for own, due in unmade:
        client, status = programs.client[own[0]], programs.status[own] == REFUSED
        for rows, total in ((~status, open_calls), (status, gone)):
            total[client] += _of_unmade(due, np.flatnonzero(rows), times)
    return Shortfalls(open_calls + gone, gone)


def _of_calls(calls: Calls, chosen: Flags, facts: Facts, times: Floats) -> Floats:
    """Return the missing service of calls: input until admission, and tokens not yet made."""
    sums = Piecewise(len(facts.clients), times)
    rows = np.flatnonzero(chosen)
    requests = calls.requests
    client, due_s = requests.client[rows], calls.first_due_s[rows]
    never = times[-1] + 1
    admitted_s = np.nan_to_num(requests.admitted_s[rows], nan=never)
    amount = facts.weights.extend * requests.input_tokens[rows].astype(np.float64)
    sums.add(client, due_s, admitted_s, amount, amount)
    for start_s, end_s, first, last in _lacking_output(calls, rows, facts.horizon_s, never):
        sums.add(client, start_s, end_s, facts.weights.output * first, facts.weights.output * last)
    values = sums.values()
    # tolerance for rounding errors of the amounts
    noise = 1e-9 * (1 + float(np.abs(amount).max(initial=0.0)))
    return np.where(values > noise, values, 0.0)


def _lacking_output(
    calls: Calls, rows: Ints, horizon_s: float, never_s: float
) -> list[tuple[Floats, Floats, Floats, Floats]]:
    """Return the due and missing output of each call as linear pieces.

    Due tokens and produced tokens each rise linearly, so that four times divide a call into pieces.
    """
    requests, pace = calls.requests, calls.alone.per_token_s
    whole, made = calls.output_tokens[rows], requests.output_tokens[rows]
    begin = calls.first_due_s[rows]
    full = begin + pace * np.maximum(0.0, whole - 1)
    token = np.nan_to_num(requests.first_token_s[rows], nan=np.inf)
    finish = requests.finish_s[rows]
    done = np.where(np.isnan(finish), horizon_s, finish)
    limit = np.maximum(begin, never_s)
    cuts = np.sort(np.clip(np.stack([begin, full, token, done, limit]), begin, limit), axis=0)
    pieces = []
    for start, end in pairwise(cuts):
        middle = (start + end) / 2
        rising = middle < full
        producing = (middle >= token) & (middle < done)
        later = np.maximum(0, made - 1)
        lasts = np.where(producing, done - token, 1.0)
        values = []
        for at in (start, end):
            came = np.where(rising, 1 + (at - begin) / (pace or 1.0), whole)
            came = np.minimum(whole, came)
            since = np.where(producing, at - token, 0.0)
            got = np.where(middle < token, 0.0, 1 + later * np.where(producing, since / lasts, 1.0))
            values.append(came - got)
        pieces.append(_positive(start, end, *values))
    return pieces


def _positive(
    start: Floats, end: Floats, first: Floats, last: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the part of each line that is above 0."""
    crosses = (first < 0) != (last < 0)
    change = np.where(crosses, first - last, 1.0)
    zero = start + (end - start) * np.where(crosses, first / change, 0.0)
    begin = np.where(crosses & (first < 0), zero, start)
    over = np.where(crosses & (last < 0), zero, end)
    return begin, over, np.maximum(0.0, first), np.maximum(0.0, last)


def _of_unmade(due: Unmade, rows: Ints, times: Floats) -> Floats:
    """Return the service due before each time in calls that were never made."""
    total = np.zeros(len(times))
    first = np.searchsorted(times, due.arrival_s[rows] + due.reached_s[rows], "right")
    count = len(times) - first
    for part in portions(count, AT_ONCE) if len(rows) else ():
        place, time = spread(first[part], count[part])
        amount = np.maximum(0.0, due.by(rows[part][place], times[time]))
        total += np.bincount(time, weights=amount, minlength=len(times))
    return total
