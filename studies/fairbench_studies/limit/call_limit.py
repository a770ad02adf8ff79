"""A lower bound on a run's makespan under any scheduler, from the earliest start of each call.

A call can begin only after the earlier calls of its program have ended and the user's think time
has passed. In the simpler bound ``least_makespan`` of the module ``limit``, all calls of a program
can begin when the program arrives. Docs: docs/reference/metrics.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.limit import (
    LeastWork,
    on_all_replicas_s,
    program_arrivals,
    program_rows,
    work_from,
)
from fairbench.metrics.records import FINISHED, Facts, Flags, Floats, Ints, Programs, Requests

TAILS = 64  # The bound is evaluated for at most this number of remaining times ``q`` (s).


def least_makespan_by_calls(
    requests: Requests, programs: Programs, facts: Facts, work: LeastWork
) -> float:
    """Return the time (s) before which no scheduler could have finished the run's requests.

    A run lasts at least ``a + w + q`` seconds if some calls cannot begin before time ``a``, occupy
    all replicas for ``w``, and precede at least ``q`` seconds of their programs. The function
    returns the largest ``a + w + q`` of any calls, or the longest time of a program alone in the
    cluster, if this time is longer.

    ``facts.prices`` must not be None. ``requests`` must state each request's compulsory tokens
    (tokens that no cache saves).
    """
    calls = call_times(requests, programs, facts)
    most_s = float((calls.begin_s + calls.alone_s + calls.tail_s).max(initial=0.0))
    # Only finished calls of recorded programs have an earliest start; other requests may start at
    # 0.
    start_s = np.zeros(len(requests))
    start_s[calls.row] = calls.begin_s
    tail_s = np.sort(calls.tail_s)
    for least_s in np.unique(tail_s[:: -(-len(tail_s) // TAILS) or 1]):
        rows = calls.row[calls.tail_s >= least_s]
        times_s, *parts = work_from(requests, facts, work, start_s, rows)
        busy_s = on_all_replicas_s(facts, *parts)
        most_s = max(most_s, float((times_s + busy_s).max() + least_s))
    return most_s


class LeastCallTimes(NamedTuple):
    """The finished calls in order of program and depth, as arrays of shape (n_calls,).

    - ``row`` is the row of the call in the table of requests.
    - ``begin_s`` is the earliest time at which the call can begin under any scheduler.
    - ``alone_s`` is the least time that the call takes on an idle replica.
    - ``tail_s`` is the least time from the end of the call to the end of its program.
    """

    row: Ints
    begin_s: Floats
    alone_s: Floats
    tail_s: Floats


def call_times(requests: Requests, programs: Programs, facts: Facts) -> LeastCallTimes:
    """Return, for each call, the times that no scheduler can shorten.

    A call at depth d > 0 waits for an unknown call at depth d - 1, and then for its own think time
    (pause). The earliest start of a call at depth d is computed from the call at depth d - 1 that
    can end first. If depth d has a single call, all calls at depth d + 1 wait for that call. The
    ``tail_s`` of a depth's only call therefore includes the longest call at the next depth.
    """
    prices = facts.prices
    assert prices is not None
    program = program_rows(requests, programs)
    row = np.flatnonzero((requests.status == FINISHED) & (program >= 0))
    row = row[np.lexsort((requests.depth[row], program[row]))]
    program, depth = program[row], requests.depth[row]
    alone_s = prices.alone_s(requests.input_tokens[row], requests.output_tokens[row])
    pause_s = _pauses(requests, programs, row, program)
    first = np.flatnonzero(np.diff(program, prepend=-1) | np.diff(depth, prepend=-1))
    if not len(first):
        return LeastCallTimes(row, alone_s, alone_s, alone_s)
    took_s = pause_s + alone_s
    # ``shortest_s`` has an element for each depth of each program: the smallest sum of pause and
    # duration among the calls at this depth.
    shortest_s = np.minimum.reduceat(took_s, first)
    level = np.cumsum(np.isin(np.arange(len(row)), first)) - 1
    before_s = np.cumsum(shortest_s) - shortest_s
    begins = np.flatnonzero(np.diff(program[first], prepend=-1))
    before_s -= np.repeat(before_s[begins], np.diff(begins, append=len(first)))
    begin_s = program_arrivals(programs, facts)[program] + before_s[level] + pause_s
    single = np.diff(first, append=len(row)) == 1
    # ``follows`` is true if the program has calls at the next depth.
    follows = np.diff(program[first], append=-1) == 0
    known = _all_finished(requests, programs, program[first])
    tails_s = _tails(np.maximum.reduceat(took_s, first), single & follows & known)
    return LeastCallTimes(row, begin_s, alone_s, tails_s[level])


def _pauses(requests: Requests, programs: Programs, row: Ints, program: Ints) -> Floats:
    """Return the shortest possible pause (s) before each call, such as a user's think time.

    A call at depth 0 arrives at a fixed time after its program. Before any other call, the shortest
    pause lasts from the latest end of an earlier call of the program to the other call's arrival.
    The pause is 0 if no call of the program ends before the call's arrival, or if a call of the
    program never finishes.
    """
    arrival_s = requests.arrival_s[row]
    times_s = np.unique(requests.finish_s[row])
    own = program * (len(times_s) + 1)
    ends = np.sort(own + np.searchsorted(times_s, requests.finish_s[row]) + 1)
    latest = np.searchsorted(ends, own + np.searchsorted(times_s, arrival_s, "right"), "right") - 1
    # ``last`` is -1 if no earlier call of the program had ended.
    last = np.where(latest < 0, -1, ends[latest] - own - 1)
    is_known = (last >= 0) & _all_finished(requests, programs, program)
    since_s = np.where(is_known, times_s[np.maximum(last, 0)], arrival_s)
    at_start = requests.depth[row] == 0
    since_s[at_start] = programs.arrival_s[program[at_start]]
    pause_s: Floats = arrival_s - since_s
    return pause_s


def _all_finished(requests: Requests, programs: Programs, program: Ints) -> Flags:
    broken = program_rows(requests, programs)[requests.status != FINISHED]
    return ~np.isin(program, broken)


def _tails(longest_s: Floats, waited_for: Flags) -> Floats:
    """Return, for each depth, the least time from the end of a call to the program's end.

    Args:
        longest_s: The largest sum of a call's pause and duration (s), by depth in the program.
        waited_for: Whether a depth has a single call that all calls at the next depth wait for.
    """
    after_s = np.where(waited_for, np.append(longest_s[1:], 0.0), 0.0)
    before_s = np.cumsum(after_s) - after_s
    stops = np.where(waited_for, len(longest_s) - 1, np.arange(len(longest_s)))
    stop = np.minimum.accumulate(stops[::-1])[::-1]
    tails_s: Floats = before_s[stop] - before_s
    return tails_s
