"""The service due to each client: the service that it would have received without delays.

A call is due when its program would have made it if its predecessors had taken no longer than alone
(``unhindered``). Think times stay the same; time lost earlier does not count. A client that is
served late is therefore due service that it could not even request yet. A client that is idle
because its user thinks is due nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.arrays import in_order
from fairbench.metrics.contention import Unhindered, unhindered
from fairbench.metrics.records import FINISHED, Facts, Floats, Ints, Programs, Requests


@dataclass(frozen=True, slots=True, eq=False)
class Calls:
    """The calls of a run: the length of each answer, and the delay of each call (s)."""

    requests: Requests
    output_tokens: Floats
    alone: Unhindered
    late_s: Floats

    @property
    def first_due_s(self) -> Floats:
        """The time at which the first token would have arrived."""
        due: Floats = self.requests.arrival_s - self.late_s + self.alone.first_token_s
        return due


def shortfall(requests: Requests, programs: Programs, facts: Facts, end_s: float) -> Floats:
    """Return the weighted tokens that were due to each client before ``end_s`` and missing.

    The result is exact for calls that were made. Programs cut off by the run's end also have calls
    that were never made. These are estimated from the fraction that finished programs of the client
    (of all clients, if it has none) had requested at the same age.
    """
    calls, unmade = asked_of(requests, programs, facts)
    clients = len(facts.clients)
    made = _short_of(calls, end_s, facts)
    never = np.zeros(len(programs))
    for own, due in unmade:
        cut = np.flatnonzero(due.reached_s < end_s - due.arrival_s)
        never[own[cut]] = due.by(cut, end_s)
    short: Floats = np.bincount(requests.client, weights=made, minlength=clients).astype(np.float64)
    short += np.bincount(programs.client, weights=never, minlength=clients)
    return short


def asked_of(
    requests: Requests,
    programs: Programs,
    facts: Facts,
    served: Callable[[Requests, Floats, float], Unhindered] = unhindered,
) -> tuple[Calls, list[tuple[Ints, Unmade]]]:
    """Return the calls that were made, and the calls that were never made.

    The latter are one entry for each client that has some: the rows of its programs, and their due
    service.
    """
    owner = _program_rows(requests, programs)
    output, unsent = _lengths(requests, programs, owner, facts.weights)
    alone = served(requests, output, facts.horizon_s)
    calls = Calls(requests, output, alone, _late(requests, alone.lost_s))
    return calls, list(_never_made(calls, programs, owner, unsent, facts))


def _program_rows(requests: Requests, programs: Programs) -> Ints:
    """Return each call's program row; ``len(programs)`` if it is missing (killed run)."""
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
    """Return each answer's full length, and the remaining demand of each program.

    The part of a program's demand that its answers lack is divided among its unfinished and unmade
    calls. The division is proportional to the maximum that each call may still produce.
    """
    count = len(programs)

    def of_program(amounts: Floats | Ints) -> Floats:
        summed: Floats = np.bincount(owner, weights=amounts, minlength=count).astype(np.float64)
        return summed[:count]

    finished = requests.status == FINISHED
    may_come = np.where(finished, 0, requests.max_new_tokens - requests.output_tokens)
    may_come = np.maximum(0, may_come)
    missing = np.maximum(0, programs.demand_output_tokens - of_program(requests.output_tokens))
    calls = of_program(np.ones(len(requests)))
    usual = of_program(requests.max_new_tokens) / np.maximum(1, calls)
    unmade = np.maximum(0, programs.demand_requests - calls) * usual
    shared = of_program(may_come) + unmade
    part = np.divide(missing, shared, out=np.zeros(count), where=shared > 0)
    part = np.minimum(1, part)
    output = requests.output_tokens + may_come * np.append(part, 0.0)[owner]
    unsent_input = np.maximum(0, programs.demand_input_tokens - of_program(requests.input_tokens))
    unsent = weights.extend * unsent_input + weights.output * unmade * part
    return output, np.where(programs.status == FINISHED, 0.0, unsent)


def _late(requests: Requests, lost_s: Floats) -> Floats:
    """Return how much earlier each call would have been made without earlier delays."""
    late_s = np.zeros(len(requests))
    before = _predecessors(requests)
    order = np.argsort(requests.depth, kind="stable")
    starts = np.flatnonzero(np.diff(requests.depth[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        after = rows[before[rows] >= 0]
        late_s[after] = late_s[before[after]] + lost_s[before[after]]
    return late_s


def _predecessors(requests: Requests) -> Ints:
    """Return the call for which each call waited, or -1 for none.

    The predecessor is the last call of the program that finished earlier at a depth one less.
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


def _short_of(calls: Calls, end_s: float, facts: Facts) -> Floats:
    """Return the service due to each call before ``end_s`` and not received."""
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
    """Return ``amount / of``, infinite if ``of`` is 0."""
    shape = np.broadcast_to(of, amount.shape)
    ratio: Floats = np.divide(amount, shape, out=np.full(amount.shape, np.inf), where=shape > 0)
    return ratio


def _never_made(
    calls: Calls, programs: Programs, owner: Ints, unsent: Floats, facts: Facts
) -> Iterator[tuple[Ints, Unmade]]:
    """Yield, for each client, its programs with calls never made, and their due service."""
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
    everybody = _Asked(call_age_s[done], cost[done])
    short, short_bounds = in_order(programs.client[cut], clients)
    for client in np.flatnonzero(np.diff(short_bounds)).tolist():
        own = cut[short[short_bounds[client] : short_bounds[client + 1]]]
        mine = like[bounds[client] : bounds[client + 1]]
        usual = _Asked(call_age_s[mine], cost[mine]) if len(mine) else everybody
        yield (own, Unmade(programs.arrival_s[own], reached_s[own], unsent[own], whole[own], usual))


@dataclass(frozen=True, slots=True, eq=False)
class Unmade:
    """Programs of one client with calls that were never made, one element for each.

    ``reached_s`` is the age up to which a program requested its due service, ``unsent`` the
    weighted tokens of its calls never made, ``whole`` those of all its calls.
    """

    arrival_s: Floats
    reached_s: Floats
    unsent: Floats
    whole: Floats
    usual: _Asked

    def by(self, row: Ints, end_s: Floats | float) -> Floats:
        """Return the weighted tokens due in some rows before ``end_s``."""
        asked = self.usual.part_by(end_s - self.arrival_s[row])
        asked = asked - self.usual.part_by(self.reached_s[row])
        due: Floats = np.minimum(self.unsent[row], self.whole[row] * asked)
        return due


class _Asked:
    """The fraction of all demand that programs had requested by a given age."""

    def __init__(self, ages_s: Floats, amounts: Floats) -> None:
        order = np.argsort(ages_s, kind="stable")
        self._ages_s = ages_s[order]
        self._total = np.concatenate([[0.0], np.cumsum(amounts[order])])
        self._something = bool(amounts.sum())

    def part_by(self, at_s: Floats) -> Floats:
        """Return the fraction before each age; 0 if there is no demand."""
        if not self._something:
            return np.zeros(len(at_s))
        place = np.searchsorted(self._ages_s, at_s, "left")
        part: Floats = self._total[place] / self._total[-1]
        return part
