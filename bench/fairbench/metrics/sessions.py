"""Sessions: waits, durations and turns of each session, and fair shares among sessions.

A session is a program with several calls (turns) and think time between calls. Metrics include the
sessions that arrived in the window.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import Floats, Ints, in_order, ratio
from fairbench.metrics.censored_latency import Sample
from fairbench.metrics.contention import first_token_alone_s, pace_alone_s, with_admissions
from fairbench.metrics.reasons import NAN
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Client,
    Facts,
    Flags,
    Programs,
    Requests,
)
from fairbench.metrics.service import service_of
from fairbench.metrics.tables import Tables

MOST_SESSIONS = 1_000  # Runs with more sessions than this have no fair shares of sessions.
SESSION_WINDOW_S = 60.0  # Sessions are judged in windows of this length in seconds.
# A session is judged in a window only if its fair share covers at least one average call.
LEAST_CALLS = 1.0
WORST_SESSIONS = 10  # The summary of a run lists this many sessions, the longest waits first.


class Calls(NamedTuple):
    """The calls of sessions in order of session and arrival; times in seconds, shape (calls,).

    - ``session`` is the table row of the call's program.
    - ``end_s`` is the end of the call, or the end of the run for a call in progress.
    - ``alone_s`` is the time that the call would take alone, with only the session's own prefix
      cached.
    - ``wait_s`` is the time from arrival to admission, or to the end of the run for a waiting call.
    """

    requests: Requests
    session: Ints
    end_s: Floats
    alone_s: Floats
    wait_s: Floats
    still_waits: Flags


class RecordedSessions:
    """The sessions of a run, with results by session and by client."""

    def __init__(self, tables: Tables, facts: Facts) -> None:
        self._programs, self._facts = tables.programs, facts
        self._clients = len(facts.clients)
        self.calls = _calls_of(tables.requests, tables.programs, facts.horizon_s)
        self._arrived = facts.window.holds(tables.programs.arrival_s)
        self._client = tables.programs.client

    def _sums(self, values: Floats | Flags) -> Floats:
        """Return the sum of each session's values over its calls, shape (n_sessions,)."""
        sums: Floats = np.bincount(self.calls.session, values, len(self._programs)).astype(float)
        return sums

    @cached_property
    def busy_s(self) -> Floats:
        """The time (s) for which each session had a call in progress, shape (n_sessions,)."""
        return _union_s(self.calls, self.calls.end_s, len(self._programs))

    @cached_property
    def slowdown(self) -> Floats:
        """Each session's busy time relative to the same session running alone; NaN if unknown."""
        calls = self.calls
        ends_s = np.minimum(calls.end_s, calls.requests.arrival_s + calls.alone_s)
        alone_s = _union_s(calls, ends_s, len(self._programs))
        over: Floats = np.full(len(alone_s), np.nan)
        np.divide(self.busy_s, alone_s, out=over, where=alone_s > 0)
        return over

    @cached_property
    def wait_s(self) -> Floats:
        """The seconds that the calls of each session waited for admission, shape (n_sessions,)."""
        return self._sums(self.calls.wait_s)

    @cached_property
    def longest_wait_s(self) -> Floats:
        """The longest wait (s) of any call of each session; 0 for a session without calls."""
        longest_s = np.zeros(len(self._programs))
        np.maximum.at(longest_s, self.calls.session, self.calls.wait_s)
        return longest_s

    @cached_property
    def turns(self) -> Floats:
        """The number of finished calls of each session, shape (n_sessions,)."""
        return self._sums(self.calls.requests.status == FINISHED)

    @cached_property
    def active_s(self) -> Floats:
        """The seconds from each session's first call to the end of the session or of the run."""
        finish_s, begun_s = self._programs.finish_s, self._programs.arrival_s
        horizon_s = self._facts.horizon_s
        until_s = np.where(np.isfinite(finish_s), finish_s, horizon_s)
        active_s: Floats = np.maximum(0.0, until_s - begun_s)
        return active_s

    def busy_times(self) -> list[Sample]:
        """Return, for each client, the seconds in which its sessions had a call in progress."""
        status = self._programs.status
        done, open_ended = status == FINISHED, status == UNFINISHED
        return self._samples(self._client, self.busy_s, done, open_ended, self._arrived)

    def slowdowns(self) -> list[Sample]:
        """Return each client's session slowdowns, up to the end of the run."""
        known = np.isfinite(self.slowdown)
        nothing = np.zeros(len(known), np.bool_)
        return self._samples(self._client, self.slowdown, known, nothing, self._arrived & known)

    def turn_times(self) -> list[Sample]:
        """Return how long each client's calls took from arrival to the last token, in seconds."""
        calls, status = self.calls, self.calls.requests.status
        turn_s = calls.end_s - calls.requests.arrival_s
        return self._of_calls(turn_s, status == FINISHED, status == UNFINISHED)

    def waits(self) -> list[Sample]:
        """Return how long each client's calls waited from arrival to admission, in seconds."""
        calls = self.calls
        refused = calls.requests.status == REFUSED
        still = calls.still_waits & ~refused
        return self._of_calls(calls.wait_s, ~still & ~refused, still)

    def gate_waits(self) -> list[Sample]:
        """Return, for each client, the seconds that its calls spent in the gateway.

        Precondition: the run has a gateway.
        """
        requests = self.calls.requests
        assert requests.routed_s is not None
        held = np.isnan(requests.routed_s)
        refused = requests.status == REFUSED
        until_s = np.where(held, self._facts.horizon_s, requests.routed_s)
        return self._of_calls(until_s - requests.arrival_s, ~held & ~refused, held & ~refused)

    def _of_calls(self, values: Floats, known: Flags, more: Flags) -> list[Sample]:
        session = self.calls.session
        return self._samples(self._client[session], values, known, more, self._arrived[session])

    def _samples(
        self, client: Ints, values: Floats, known: Flags, more: Flags, chosen: Flags
    ) -> list[Sample]:
        """Return each client's ``Sample``; ``known`` marks exact values, ``more`` lower bounds."""
        by_client = (
            self._split(client[rows], values[rows]) for rows in (chosen & known, chosen & more)
        )
        rest = np.bincount(client[chosen & ~known & ~more], minlength=self._clients)
        return list(map(Sample, *by_client, rest.tolist()))

    def _split(self, client: Ints, values: Floats) -> list[Floats]:
        order, bounds = in_order(client, self._clients)
        return [values[order][low:high] for low, high in pairwise(bounds.tolist())]

    def hit_rates(self) -> list[float]:
        """Return the median cache hit rate of each client's sessions; NaN without admitted calls.

        The cache hit rate of a session is the cached fraction of its input.
        """
        admitted = ~np.isnan(self.calls.requests.admitted_s)
        tokens = self._sums(np.where(admitted, self.calls.requests.input_tokens, 0))
        cached = self._sums(np.where(admitted, self.calls.requests.cached_tokens, 0))
        rows = np.flatnonzero(self._arrived & (tokens > 0))
        rates = self._split(self._client[rows], cached[rows] / tokens[rows])
        return [float(np.median(one)) if len(one) else NAN for one in rates]

    def turns_per_min(self) -> list[float]:
        """Return each client's finished calls per minute of active session time."""
        rows = np.flatnonzero(self._arrived)
        turns, active_s = (
            np.bincount(self._client[rows], values[rows], self._clients).tolist()
            for values in (self.turns, self.active_s)
        )
        return [60 * ratio(count, time_s) for count, time_s in zip(turns, active_s, strict=True)]

    def least_by_client(self, shares: Floats) -> list[float]:
        """Return each client's lowest value of ``shares`` over its sessions, or NaN if unknown."""
        rows = np.flatnonzero(self._arrived & np.isfinite(shares))
        lowest = np.full(self._clients, np.inf)
        np.minimum.at(lowest, self._client[rows], shares[rows])
        found: list[float] = np.where(np.isfinite(lowest), lowest, np.nan).tolist()
        return found

    def worst(self) -> list[int]:
        """Return the rows of the sessions whose calls waited longest, in descending order."""
        rows = np.flatnonzero(self._arrived)
        order = np.argsort(-self.longest_wait_s[rows], kind="stable")[:WORST_SESSIONS]
        worst: list[int] = rows[order].tolist()
        return worst


def _calls_of(requests: Requests, programs: Programs, horizon_s: float) -> Calls:
    """Return the calls of ``programs``, with estimates of unknown admission times."""
    order = np.argsort(programs.program_id, kind="stable")
    ids = programs.program_id[order]
    place = np.minimum(np.searchsorted(ids, requests.program_id), max(0, len(ids) - 1))
    known = ids[place] == requests.program_id if len(ids) else np.zeros(len(requests), np.bool_)
    rows = np.flatnonzero(known)
    rows = rows[np.lexsort((requests.arrival_s[rows], order[place[rows]]))]
    session, calls = order[place[rows]], with_admissions(requests).take(rows)
    end_s = np.where(np.isnan(calls.finish_s), horizon_s, calls.finish_s)
    waiting = np.isnan(calls.admitted_s)
    until_s = np.where(waiting, end_s, calls.admitted_s)
    wait_s = np.maximum(0.0, until_s - calls.arrival_s)
    return Calls(calls, session, end_s, _alone_s(calls, session), wait_s, waiting)


def _alone_s(calls: Requests, session: Ints) -> Floats:
    """Return the seconds that each call takes alone, with only the session's own prefix cached.

    The session's longest earlier prompt and its answer count as cached, so a lone call computes
    only the prompt tokens after them. A lone call is assumed to compute at most as many tokens as
    the same call in the run.
    """
    context = calls.input_tokens + calls.output_tokens
    before = np.zeros(len(context), np.int64)
    # ``offsets`` make each session's values of ``context`` exceed the values of all earlier
    # sessions. The running maximum over all calls is then a running maximum within each session.
    offsets = session * (int(context.max(initial=0)) + 1)
    before[1:] = (np.maximum.accumulate(context + offsets) - offsets)[:-1]
    before[np.flatnonzero(np.diff(session, prepend=-1))] = 0
    new = np.maximum(1, calls.input_tokens - before)
    admitted = ~np.isnan(calls.admitted_s)
    new = np.where(admitted, np.minimum(new, np.maximum(1, calls.extend_tokens)), new)
    steps = np.maximum(0, calls.output_tokens - 1)
    alone_s: Floats = first_token_alone_s(calls, new) + pace_alone_s(calls) * steps
    return alone_s


def _union_s(calls: Calls, end_s: Floats, sessions: int) -> Floats:
    """Return the seconds in which each session had a call in progress, given the calls' ends."""
    # Each session's times are shifted by more than the run's length, so that the intervals of
    # different sessions never overlap.
    begin_s = calls.requests.arrival_s
    period_s = 1.0 + max(begin_s.max(initial=0.0), end_s.max(initial=0.0))
    shift_s = calls.session * period_s
    latest_s = np.maximum.accumulate(end_s + shift_s) - shift_s
    before_s = np.append(-np.inf, latest_s[:-1])[: len(end_s)]
    before_s[np.flatnonzero(np.diff(calls.session, prepend=-1))] = -np.inf
    parts_s = np.maximum(0.0, end_s - np.maximum(begin_s, before_s))
    union_s: Floats = np.bincount(calls.session, parts_s, sessions).astype(float)
    return union_s


def as_clients(sessions: RecordedSessions, tables: Tables, facts: Facts) -> tuple[Tables, Facts]:
    """Return the tables and facts of a run in which every session is a client of its own.

    A call's input counts as service at the call's admission. A call's first output token counts as
    service when it arrives, and the other output tokens count evenly until the end of the call.
    """
    calls, owners = sessions.calls, tables.programs.client.tolist()
    requests = replace(calls.requests, client=calls.session)
    programs = replace(tables.programs, client=np.arange(len(owners)))
    last_s = np.where(np.isnan(requests.first_token_s), np.nan, calls.end_s)
    programs_of_owners = zip(owners, tables.programs.program_id.tolist(), strict=True)
    names = [f"{facts.clients[owner].name} {number}" for owner, number in programs_of_owners]
    clients = tuple(
        Client(name, misbehaving=False, weight=facts.clients[owner].weight)
        for name, owner in zip(names, owners, strict=True)
    )
    service = service_of(requests, last_s)
    found = replace(facts, clients=clients, closed_loop=frozenset(), tenant_weights={})
    return Tables(names, requests, programs, service), found
