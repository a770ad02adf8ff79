"""The due service of each client: the service that the client would have had without delays.

A call is due when its program would have sent it if every earlier call of the program had run alone
on the cluster (``unhindered``). Think times between calls are assumed to be as long as in the run.
If a client is served late, its due service includes calls that the client could not send yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.arrays import Piecewise, in_order, portions, spread
from fairbench.metrics.contention import Unhindered, unhindered
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    Facts,
    Flags,
    Floats,
    Ints,
    Programs,
    Requests,
)


@dataclass(frozen=True, slots=True, eq=False)
class CallDelays:
    """The calls of a run, the full lengths of their answers in tokens, and their delays.

    ``late_s`` is how many seconds later a call was sent because earlier calls were delayed.
    """

    requests: Requests
    output_tokens: Floats
    alone: Unhindered
    late_s: Floats

    @property
    def first_due_s(self) -> Floats:
        """The time in seconds at which each call's first token was due."""
        due: Floats = self.requests.arrival_s - self.late_s + self.alone.first_token_s
        return due


def shortfall(requests: Requests, programs: Programs, facts: Facts, end_s: float) -> Floats:
    """Return each client's shortfall: the weighted tokens due before ``end_s`` but not received.

    The shortfall is exact for calls that were sent, and estimated for calls that a program did not
    send before the end of the run. A program is assumed to send its calls at the same ages (times
    since its arrival) as the client's finished programs. If a client has no finished program, its
    demand is estimated from all clients' finished programs.
    """
    calls, unmade = calls_of(requests, programs, facts)
    clients = len(facts.clients)
    made = _missing_service(calls, end_s, facts)
    never = np.zeros(len(programs))
    for own, due in unmade:
        cut = np.flatnonzero(due.reached_s < end_s - due.arrival_s)
        never[own[cut]] = due.due_by(cut, end_s)
    short: Floats = np.bincount(requests.client, weights=made, minlength=clients).astype(np.float64)
    short += np.bincount(programs.client, weights=never, minlength=clients)
    return short


def calls_of(
    requests: Requests,
    programs: Programs,
    facts: Facts,
    served: Callable[[Requests, Floats, float], Unhindered] = unhindered,
) -> tuple[CallDelays, list[tuple[Ints, Unmade]]]:
    """Return the calls that were sent, and the programs with calls that were never sent.

    Each element of the returned list belongs to one client: the row numbers of the client's
    programs with unsent calls, and the unsent demand of these programs. The function ``served``
    estimates how long calls take without delays.
    """
    owner = _program_rows(requests, programs)
    output, unsent = _lengths(requests, programs, owner, facts.weights)
    alone = served(requests, output, facts.horizon_s)
    calls = CallDelays(requests, output, alone, _late(requests, alone.lost_s))
    return calls, list(_never_made(calls, programs, owner, unsent, facts))


def _program_rows(requests: Requests, programs: Programs) -> Ints:
    """Return the row of each call's program, or ``len(programs)`` for an unknown program."""
    order = np.argsort(programs.program_id, kind="stable")
    sorted_ids = programs.program_id[order]
    found = np.searchsorted(sorted_ids, requests.program_id)
    known = np.searchsorted(sorted_ids, requests.program_id, "right") > found
    rows = np.full(len(requests), len(programs))
    rows[known] = order[found[known]]
    return rows


def _lengths(
    requests: Requests, programs: Programs, owner: Ints, weights: ServiceWeights
) -> tuple[Floats, Floats]:
    """Return each answer's full length, and each program's weighted tokens in unsent calls.

    A program's missing output is divided among its unfinished and unsent calls, in proportion to
    the tokens that each call may still generate.
    """
    count = len(programs)

    def per_program(amounts: Floats | Ints) -> Floats:
        summed: Floats = np.bincount(owner, weights=amounts, minlength=count).astype(np.float64)
        return summed[:count]

    finished = requests.status == FINISHED
    may_come = np.where(finished, 0, requests.max_new_tokens - requests.output_tokens)
    may_come = np.maximum(0, may_come)
    missing = np.maximum(0, programs.demand_output_tokens - per_program(requests.output_tokens))
    calls = per_program(np.ones(len(requests)))
    usual = per_program(requests.max_new_tokens) / np.maximum(1, calls)
    unmade = np.maximum(0, programs.demand_requests - calls) * usual
    shared = per_program(may_come) + unmade
    part = np.divide(missing, shared, out=np.zeros(count), where=shared > 0)
    part = np.minimum(1, part)
    output = requests.output_tokens + may_come * np.append(part, 0.0)[owner]
    unsent_input = np.maximum(0, programs.demand_input_tokens - per_program(requests.input_tokens))
    unsent = weights.extend * unsent_input + weights.output * unmade * part
    return output, np.where(programs.status == FINISHED, 0.0, unsent)


def _late(requests: Requests, lost_s: Floats) -> Floats:
    late_s = np.zeros(len(requests))
    before = _predecessors(requests)
    order = np.argsort(requests.depth, kind="stable")
    starts = np.flatnonzero(np.diff(requests.depth[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        after = rows[before[rows] >= 0]
        late_s[after] = late_s[before[after]] + lost_s[before[after]]
    return late_s


def _predecessors(requests: Requests) -> Ints:
    """Return the row of each call's predecessor in the program, or -1 without a predecessor.

    Among the calls whose depth is smaller by 1, the predecessor is the last call to end before the
    given call arrives.
    """
    ended = np.flatnonzero(requests.status == FINISHED)
    count = len(requests)
    call = np.concatenate([ended, np.arange(count)])
    asks = np.arange(len(call)) >= len(ended)
    time_s = np.where(asks, requests.arrival_s[call], requests.finish_s[call])
    level = requests.depth[call] - asks
    program = requests.program_id[call]
    order = np.lexsort((asks, time_s, level, program))
    position = np.maximum.accumulate(np.where(asks[order], -1, np.arange(len(order))))
    found = order[position]
    same = (position >= 0) & (program[found] == program[order]) & (level[found] == level[order])
    before = np.full(count, -1)
    asking = asks[order]
    before[call[order][asking]] = np.where(same, call[found], -1)[asking]
    return before


def _missing_service(calls: CallDelays, end_s: float, facts: Facts) -> Floats:
    """Return each call's weighted tokens that were due by ``end_s`` but not received by then."""
    requests, output, alone = calls.requests, calls.output_tokens, calls.alone
    first_due_s = calls.first_due_s
    begun = first_due_s < end_s
    unread = begun & ~(requests.admitted_s < end_s)
    came = np.where(
        begun, np.minimum(output, 1 + ratio_or_inf(end_s - first_due_s, alone.per_token_s)), 0
    )
    last_s = np.where(np.isnan(requests.finish_s), facts.horizon_s, requests.finish_s)
    part = ratio_or_inf(end_s - requests.first_token_s, last_s - requests.first_token_s)
    later = np.maximum(0, requests.output_tokens - 1) * np.minimum(1, part)
    got = np.where(requests.first_token_s < end_s, 1 + later, 0)
    short: Floats = facts.weights.output * np.maximum(0.0, came - got)
    short += facts.weights.extend * requests.input_tokens * unread
    return short


def ratio_or_inf(amount: Floats, of: Floats | float) -> Floats:
    """Return ``amount / of`` element by element, infinite where ``of`` is 0."""
    shape = np.broadcast_to(of, amount.shape)
    ratio: Floats = np.divide(amount, shape, out=np.full(amount.shape, np.inf), where=shape > 0)
    return ratio


def _never_made(
    calls: CallDelays, programs: Programs, owner: Ints, unsent: Floats, facts: Facts
) -> Iterator[tuple[Ints, Unmade]]:
    """Yield, for each client, the rows and the demand of its programs with unsent calls."""
    known = owner < len(programs)
    owner = owner[known]
    held_s = np.zeros(len(programs))
    np.maximum.at(held_s, owner, (calls.late_s + calls.alone.lost_s)[known])
    reached_s = facts.horizon_s - programs.arrival_s - held_s
    cut = np.flatnonzero(unsent > 0)
    weights = facts.weights
    cost = weights.extend * calls.requests.input_tokens + weights.output * calls.output_tokens
    cost = cost[known]
    whole = np.bincount(owner, weights=cost, minlength=len(programs)) + unsent
    call_age_s = calls.first_due_s[known] - programs.arrival_s[owner]
    done = np.flatnonzero(programs.status[owner] == FINISHED)
    clients = len(facts.clients)
    like, bounds = in_order(programs.client[owner[done]], clients)
    like = done[like]
    everybody = _RequestedPart(call_age_s[done], cost[done])
    short, short_bounds = in_order(programs.client[cut], clients)
    for client in np.flatnonzero(np.diff(short_bounds)).tolist():
        own = cut[short[short_bounds[client] : short_bounds[client + 1]]]
        mine = like[bounds[client] : bounds[client + 1]]
        usual = _RequestedPart(call_age_s[mine], cost[mine]) if len(mine) else everybody
        yield (own, Unmade(programs.arrival_s[own], reached_s[own], unsent[own], whole[own], usual))


@dataclass(frozen=True, slots=True, eq=False)
class Unmade:
    """Programs of one client with calls that were never sent; arrays have one element per program.

    - ``arrival_s`` is the time in seconds at which the program arrived.
    - ``reached_s`` is the program's age at the end of the run minus the longest delay of any of the
      program's calls, in seconds.
    - ``unsent`` is the total size, in weighted tokens, of the calls that were never sent.
    - ``whole`` is the total size, in weighted tokens, of all calls of the program.
    - ``usual`` gives the fraction of a program's weighted tokens that is usually requested by a
      given age.
    """

    arrival_s: Floats
    reached_s: Floats
    unsent: Floats
    whole: Floats
    usual: _RequestedPart

    def due_by(self, row: Ints, end_s: Floats | float) -> Floats:
        """Return, for each program, the weighted tokens of unsent calls that are due by ``end_s``.

        ``row`` contains the indices of the programs.
        """
        asked = self.usual.part_by(end_s - self.arrival_s[row])
        asked = asked - self.usual.part_by(self.reached_s[row])
        due: Floats = np.minimum(self.unsent[row], self.whole[row] * asked)
        return due


class _RequestedPart:
    """The fraction of finished programs' total demand that was due by a given time after arrival.

    ``ages_s`` are the times in seconds from a program's arrival until each call was due, and
    ``amounts`` are the sizes of the calls in weighted tokens.
    """

    def __init__(self, ages_s: Floats, amounts: Floats) -> None:
        order = np.argsort(ages_s, kind="stable")
        self._ages_s = ages_s[order]
        self._total = np.concatenate([[0.0], np.cumsum(amounts[order])])
        self._something = bool(amounts.sum())

    def part_by(self, at_s: Floats) -> Floats:
        """Return the fraction of a program's demand that is due before each age in ``at_s``."""
        if not self._something:
            return np.zeros(len(at_s))
        place = np.searchsorted(self._ages_s, at_s, "left")
        part: Floats = self._total[place] / self._total[-1]
        return part


AT_ONCE = 1_000_000  # maximum number of (program, time) pairs in one array


class Shortfalls(NamedTuple):
    """Weighted tokens that were due before each time but not received, shape (clients, times).

    ``refused`` contains only the weighted tokens of refused calls and programs, which will never
    be served.
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
    """Return each client's shortfall (weighted tokens due but not received) at each time.

    ``times`` are in seconds, in ascending order. ``shortfalls`` returns the same values as
    ``shortfall`` but is faster: O(calls log times), plus O(times) for each program cut off by the
    end of the run. The function ``served`` estimates how long calls take without delays.
    """
    calls, unmade = calls_of(requests, programs, facts, served)
    refused = requests.status == REFUSED
    open_calls = _calls_missing(calls, ~refused, facts, times)
    gone = _calls_missing(calls, refused, facts, times)
    for own, due in unmade:
        client, status = programs.client[own[0]], programs.status[own] == REFUSED
        for rows, total in ((~status, open_calls), (status, gone)):
            total[client] += _unmade_due(due, np.flatnonzero(rows), times)
    return Shortfalls(open_calls + gone, gone)


def _calls_missing(calls: CallDelays, chosen: Flags, facts: Facts, times: Floats) -> Floats:
    """Return each client's due but not received tokens at each time, in the ``chosen`` calls."""
    sums = Piecewise(len(facts.clients), times)
    rows = np.flatnonzero(chosen)
    requests = calls.requests
    client, due_s = requests.client[rows], calls.first_due_s[rows]
    never = times[-1] + 1
    admitted_s = np.nan_to_num(requests.admitted_s[rows], nan=never)
    amount = facts.weights.extend * requests.input_tokens[rows].astype(np.float64)
    sums.add_pieces(client, due_s, admitted_s, amount, amount)
    for start_s, end_s, first, last in _lacking_output(calls, rows, facts.horizon_s, never):
        sums.add_pieces(
            client, start_s, end_s, facts.weights.output * first, facts.weights.output * last
        )
    values = sums.values_at_times()
    # Values below ``noise``, in weighted tokens, are rounding errors.
    noise = 1e-9 * (1 + float(np.abs(amount).max(initial=0.0)))
    return np.where(values > noise, values, 0.0)


def _lacking_output(
    calls: CallDelays, rows: Ints, horizon_s: float, never_s: float
) -> list[tuple[Floats, Floats, Floats, Floats]]:
    """Return how many output tokens of each call were due but not received, over time.

    A call's number of missing tokens is piecewise linear in time, because tokens become due and
    arrive at constant rates.

    Returns:
        A tuple of four arrays for each linear piece: the start and the end of the piece in seconds,
        and the number of missing output tokens at the start and at the end. Each array has the
        shape (calls,).
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
    """Return the positive part of each line segment: its start, end, first value and last value."""
    crosses = (first < 0) != (last < 0)
    change = np.where(crosses, first - last, 1.0)
    zero = start + (end - start) * np.where(crosses, first / change, 0.0)
    begin = np.where(crosses & (first < 0), zero, start)
    over = np.where(crosses & (last < 0), zero, end)
    return begin, over, np.maximum(0.0, first), np.maximum(0.0, last)


def _unmade_due(due: Unmade, rows: Ints, times: Floats) -> Floats:
    total = np.zeros(len(times))
    first = np.searchsorted(times, due.arrival_s[rows] + due.reached_s[rows], "right")
    count = len(times) - first
    for part in portions(count, AT_ONCE) if len(rows) else ():
        place, time = spread(first[part], count[part])
        amount = np.maximum(0.0, due.due_by(rows[part][place], times[time]))
        total += np.bincount(time, weights=amount, minlength=len(times))
    return total
