"""Quantities of a run that several metrics share; each is computed once, when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from math import inf, nextafter
from typing import Any

import numpy as np

from fairbench.metrics.arrays import in_order, ratio
from fairbench.metrics.bounds import gap_bound
from fairbench.metrics.censored_latency import (
    Ranked,
    WellBehaved,
    client_percentiles,
    mean_of_clients,
    samples,
)
from fairbench.metrics.contention import with_admissions
from fairbench.metrics.fairness import (
    Shares,
    TenantShares,
    all_active_window,
    fair_shares,
    least,
    tenant_shares,
)
from fairbench.metrics.fairness_over_time import (
    LEAST_REQUESTS,
    WINDOWS_S,
    Timeline,
    backlogged_shares,
    least_by_client,
    timeline,
)
from fairbench.metrics.gap import max_service_gap
from fairbench.metrics.goodput import Goodput, goodput_of, padding_of, useful
from fairbench.metrics.limit import limit_values
from fairbench.metrics.reasons import (
    NAN,
    NO_COHORT,
    NO_SERVICE,
    QUEUE_ESTIMATED,
    TOO_FEW_CALLS,
    TOO_FEW_REQUESTS,
    Noted,
)
from fairbench.metrics.recorded_gaps import recorded_stalls
from fairbench.metrics.records import (
    FINISHED,
    NO_MORE,
    REFUSED,
    Facts,
    Flags,
    Floats,
    Ints,
    Measurements,
    Requests,
    Window,
)
from fairbench.metrics.service import View, booked_in
from fairbench.metrics.sessions import (
    LEAST_CALLS,
    MOST_SESSIONS,
    SESSION_WINDOW_S,
    RecordedSessions,
    as_clients,
)
from fairbench.metrics.stalls import Stalls, stalls_of
from fairbench.metrics.tables import Tables
from fairbench.metrics.totals import (
    RequestLatencies,
    TwoSides,
    evicted_tokens,
    held_token_s,
    hit_rates,
    request_latencies,
    sides_of,
    statistic_of,
)
from fairbench.metrics.waiting import Backlog, unqueued_share


class RunData:
    """A run's tables and facts, and the quantities from which its metrics are computed.

    ``window`` is the measured window, which ends no later than the run. ``cut`` is a copy of
    ``facts`` whose window is the measured window. ``measured`` holds measurements that the tables
    do not contain, from a live run's driver or from a log.
    """

    def __init__(self, tables: Tables, facts: Facts, measured: Measurements = NO_MORE) -> None:
        self.tables, self.facts, self.measured = tables, facts, measured
        self.requests, self.programs, self.log = tables.requests, tables.programs, tables.service
        self.clients = len(facts.clients)
        # The window excludes its end. The window therefore ends just after the run, because tokens
        # often come exactly at the run's end.
        horizon_s = nextafter(facts.horizon_s, inf)
        self.window = Window(facts.window.start_s, min(facts.window.end_s, horizon_s))
        self.cut = replace(facts, window=self.window)

    def count_status(self, status: int) -> int:
        """Return how many requests have the given status."""
        return int(np.count_nonzero(self.requests.status == status))

    @cached_property
    def done(self) -> Flags:
        """A mask that selects the completed requests."""
        done: Flags = self.requests.status == FINISHED
        return done

    @property
    def refused_requests(self) -> int:
        """The number of refused requests; failed requests, which broke off, are not included."""
        return self.count_status(REFUSED) - self.facts.failed

    @property
    def lost_word(self) -> str:
        """The word with which messages describe unanswered requests, such as "refused"."""
        if not self.facts.failed:
            return "refused"
        return "failed or refused" if self.refused_requests else "failed"

    def per_second(self, amount: float) -> float:
        """Return ``amount`` divided by the duration of the run in seconds."""
        return ratio(amount, self.facts.horizon_s)

    def window_rate(self, amounts: Floats) -> float:
        """Return the sum of ``amounts`` divided by the length of the window in seconds."""
        return ratio(float(amounts.sum()), self.window.length_s)

    def window_rates(self, amounts: Floats) -> Floats:
        """Return each of the ``amounts`` divided by the length of the window in seconds."""
        return amounts / (self.window.length_s or NAN)

    def rows_by_client(self, client: Ints, weights: Ints | None = None) -> Ints:
        """Return how often each client occurs in ``client``, or the sum of its ``weights``."""
        return np.bincount(client, weights=weights, minlength=self.clients).astype(np.int64)

    @property
    def demoted(self) -> Ints:
        """An array with 1 for each request that admission control demoted, and 0 for any other.

        Precondition: the run has admission control.
        """
        assert self.requests.demoted is not None
        return self.requests.demoted

    @cached_property
    def hit_rates(self) -> list[float]:
        """The cache hit rates of the clients."""
        return hit_rates(self.requests, self.clients)

    @cached_property
    def latencies(self) -> RequestLatencies:
        """The latencies of all completed requests."""
        return request_latencies(self.requests)

    def request_ms(self, statistic: str, latency: str) -> float:
        """Return a statistic, such as ``p99``, of a latency of completed requests, in ms."""
        if latency != "itl":
            return statistic_of(statistic, self.latencies.ms[latency])
        if self.measured.gaps_s is not None:
            return statistic_of(statistic, self.measured.gaps_s * 1000)
        if statistic == "mean":
            return 1000 * ratio(self.latencies.decode_s, self.latencies.gaps)
        return NAN

    def client_tpot_ms(self, statistic: str) -> list[float]:
        """Return a statistic, such as ``p99``, of each client's times per output token, in ms."""
        return [statistic_of(statistic, one) for one in self._tpot_ms]

    @cached_property
    def _tpot_ms(self) -> list[Floats]:
        several = self.done & (self.requests.output_tokens > 1)
        order, bounds = in_order(self.requests.client[several], self.clients)
        tpot_ms = self.latencies.ms["tpot"][order]
        return [tpot_ms[low:high] for low, high in pairwise(bounds.tolist())]

    @cached_property
    def cohorts(self) -> Ranked:
        """The latencies of each client's programs that arrived in the window."""
        return Ranked(samples(self.requests, self.programs, self.facts))

    @cached_property
    def well_behaved(self) -> WellBehaved:
        """The latencies of the well-behaved clients that had work in the window."""
        return WellBehaved(self.programs, self.cohorts, self.facts, self.lost_word)

    def client_latency(self, percent: int) -> list[Noted]:
        """Return a percentile of each client's latency, in seconds."""
        return client_percentiles(self.cohorts, percent, self.lost_word)

    @cached_property
    def seen(self) -> Requests:
        """The requests, with estimates in place of unknown admission times."""
        return with_admissions(self.requests)

    @cached_property
    def fair_shares(self) -> Shares:
        """Service and fair shares of each client in the window."""
        return fair_shares(self.seen, self.programs, self.log, self.facts, self.window)

    @cached_property
    def tenants(self) -> TenantShares | None:
        """The fair shares of tenants and their clients; None if the run has no tenants."""
        return tenant_shares(self.fair_shares, self.facts)

    @property
    def tree(self) -> TenantShares:
        """The fair shares of tenants and clients in the tree of tenants.

        Precondition: the run has tenants.
        """
        assert self.tenants is not None
        return self.tenants

    def noted_share(self, share: float) -> Noted:
        """Return a share as a metric's value, with a reason if the value is not reported."""
        return Noted(share, self.fair_shares.not_judged)

    @cached_property
    def queue_empty_share(self) -> Noted:
        """The fraction of the window in which no request waited."""
        empty = unqueued_share(self.seen, self.facts.horizon_s, self.window)
        return Noted(empty, remark="" if self.seen is self.requests else QUEUE_ESTIMATED)

    @cached_property
    def service_gap(self) -> float:
        """The largest service gap, in weighted tokens; NaN if no two clients waited together."""
        backlog = Backlog.of_requests(self.requests, self.facts)
        return max_service_gap(backlog, self.log, self.facts).tokens if backlog.shared else NAN

    @cached_property
    def gap_bound(self) -> Noted:
        """A fairness theorem's upper bound on ``service_gap``, in weighted tokens."""
        bound = gap_bound(self.requests, self.log, self.facts)
        return Noted(bound, self.facts.bound_unavailable)

    @property
    def gap_bound_s(self) -> Noted:
        """The metric ``gap_bound`` in seconds, computed from the service rate in ``window``."""
        bound = self.facts.bound
        if bound is None:
            return Noted(NAN, self.facts.bound_unavailable)
        view = View.CLIENT if bound.view == "client" else View.CHARGED
        service = float(self.fair_shares.booked.seen(view, self.facts.weights).sum())
        return Noted(ratio(self.gap_bound.value * self.window.length_s, service), NO_SERVICE)

    @cached_property
    def all_active(self) -> Window | None:
        """The period in which all clients were active, or None if there is no such period."""
        return all_active_window(self.programs, self.facts)

    @cached_property
    def all_active_service(self) -> Floats:
        """Each client's service while all clients were active; empty if there is no such period."""
        if self.all_active is None:
            return np.empty(0)
        booked = booked_in(self.log, self.all_active, self.clients)
        return booked.seen(View.CLIENT, self.facts.weights)

    @cached_property
    def timeline(self) -> Timeline | None:
        """Service and waits in the measurement window; None if every client got its due service."""
        if not (self.clients and self.window.length_s and self.fair_shares.contended):
            return None
        return timeline(self.seen, self.programs, self.log, self.facts, self.window)

    @cached_property
    def worst_shares(self) -> dict[float, Floats]:
        """The lowest fraction of its fair share that each client got in a window, by window length.

        The window length 0 stands for all periods in which the client was backlogged.
        """
        line = self.timeline
        if line is None:
            return dict.fromkeys((*WINDOWS_S, 0.0), np.full(self.clients, NAN))
        found = {length_s: least_by_client(line, length_s) for length_s in WINDOWS_S}
        return {**found, 0.0: backlogged_shares(line)}

    def share_in_worst_window(self, length_s: float) -> list[Noted]:
        """Return each client's minimum fair share in any window of ``length_s`` seconds."""
        why = self.why_no_window
        return [Noted(share, why) for share in self.worst_shares[length_s].tolist()]

    def least_share_in_windows(self, length_s: float) -> Noted:
        """Return the minimum fair share of any client in any window of ``length_s`` seconds."""
        return Noted(least(self.worst_shares[length_s]), self.why_no_window)

    @property
    def why_no_window(self) -> str:
        """The reason why a client has no share in any sliding window."""
        return self.fair_shares.not_judged or TOO_FEW_REQUESTS

    @property
    def has_targets(self) -> bool:
        """Return whether any client has latency targets."""
        return any(client.targets for client in self.facts.clients)

    @cached_property
    def goodput(self) -> Goodput:
        """The goodput of the clients that have latency targets."""
        return goodput_of(self.tables, self.cut)

    @cached_property
    def useful_service(self) -> Floats:
        """Each client's useful service (without padding) in the window, in weighted tokens."""
        padding = padding_of(self.facts)
        return useful(self.tables, padding, self.window, self.facts.weights)

    @cached_property
    def memory_window(self) -> Window:
        """The window for the metrics of KV memory; it ends no later than the run."""
        facts = self.facts
        return Window(facts.window.start_s, min(facts.window.end_s, facts.horizon_s))

    @cached_property
    def held_token_s(self) -> Floats:
        """The KV memory that each client held, in token-seconds.

        Precondition: the run recorded which clients hold KV memory.
        """
        assert self.tables.memory is not None
        return held_token_s(self.tables.memory, self.clients, self.memory_window)

    @cached_property
    def evicted_tokens(self) -> Floats:
        """The cached tokens of each client (row) that requests of each client (column) evicted."""
        assert self.tables.memory is not None
        return evicted_tokens(self.tables.memory, self.clients, self.memory_window)

    @cached_property
    def stalls(self) -> Stalls | None:
        """The stalls of answers; None if no times of decode steps or of tokens are known."""
        if self.measured.token_gaps is not None:
            return recorded_stalls(self.requests, self.measured.token_gaps, self.facts)
        return stalls_of(self.requests, self.log, self.facts)

    @property
    def known_stalls(self) -> Stalls:
        """The stalls of the run's output streams. Precondition: ``stalls`` is not None."""
        assert self.stalls is not None
        return self.stalls

    @property
    def victims_stalled(self) -> float:
        """The longest stall time of any well-behaved client, in seconds per minute of answers."""
        each = zip(self.facts.clients, self.known_stalls.per_minute(), strict=True)
        found = [value for client, value in each if not client.misbehaving and value == value]
        return max(found, default=NAN)

    @property
    def weight_parts(self) -> list[float]:
        """Each client's weight divided by the sum of all weights."""
        weights = self.facts.client_weights
        parts: list[float] = (weights / weights.sum()).tolist()
        return parts

    @property
    def hit_rates_alone(self) -> list[float]:
        """The cache hit rate of each client when the client is simulated alone; NaN if unknown."""
        return [self.facts.hit_alone.get(one.name, NAN) for one in self.facts.clients]

    @cached_property
    def sessions(self) -> dict[str, Ranked]:
        """Each client's latencies (in seconds) and slowdowns of recorded sessions, by metric name.

        The keys of the dict are ``session``, ``turn``, ``ttft``, ``turn_wait`` and ``slowdown``.
        The key ``gate_wait`` exists if the run has a gateway.
        """
        own = self.own_sessions
        first_tokens = samples(self.requests, self.programs, replace(self.facts, latency="ttft"))
        found = {"session": own.busy_times(), "turn": own.turn_times(), "ttft": first_tokens}
        found |= {"turn_wait": own.waits(), "slowdown": own.slowdowns()}
        if self.requests.routed_s is not None:
            found["gate_wait"] = own.gate_waits()
        return {name: Ranked(each) for name, each in found.items()}

    @cached_property
    def session_hit_rates(self) -> list[float]:
        """The median cache hit rate of each client's sessions."""
        return self.own_sessions.hit_rates()

    @cached_property
    def own_sessions(self) -> RecordedSessions:
        """The recorded sessions that the run replayed."""
        return RecordedSessions(self.tables, self.facts)

    def longest_wait(self) -> Noted:
        """Return the longest wait of a call in seconds; a lower bound if the call still waits."""
        longest = self.session_latency("turn_wait", 100)
        return max(longest, key=lambda one: one.value if one.value == one.value else -1.0)

    @cached_property
    def of_sessions(self) -> RunData | None:
        """The run with each session as a separate client; None if the run has too many sessions."""
        if not 0 < len(self.programs) <= MOST_SESSIONS:
            return None
        return RunData(*as_clients(self.own_sessions, self.tables, self.facts))

    @cached_property
    def session_shares(self) -> dict[float, Floats]:
        """Each session's fraction of its fair share, keyed by the window length in seconds.

        The value under the key 0 covers the run's whole window. The value is NaN if the session's
        fair share is less than four calls of mean size. The value under the key
        ``SESSION_WINDOW_S`` is the lowest fraction in any sliding window of ``SESSION_WINDOW_S``
        seconds.
        """
        run = self.of_sessions
        line = None if run is None else run.timeline
        if run is None or line is None:
            return dict.fromkeys((0.0, SESSION_WINDOW_S), np.full(len(self.programs), NAN))
        judged = run.fair_shares.entitlement >= LEAST_REQUESTS * line.request_cost
        share = np.where(judged, np.minimum(1.0, run.fair_shares.ratio), NAN)
        worst = least_by_client(line, SESSION_WINDOW_S, LEAST_CALLS)
        return {0.0: share, SESSION_WINDOW_S: worst}

    @property
    def why_no_session_share(self) -> str:
        """The reason why no session has a fair share."""
        if self.of_sessions is None:
            return f"more than {MOST_SESSIONS:,} sessions" if len(self.programs) else NO_COHORT
        return self.of_sessions.fair_shares.not_judged or TOO_FEW_CALLS

    def session_latency(self, name: str, percent: int) -> list[Noted]:
        """Return a percentile of a latency of each client's sessions, in seconds."""
        return client_percentiles(self.sessions[name], percent, self.lost_word)

    def victim_session_latency(self, name: str, percent: int) -> Noted:
        """Return a percentile of a session latency (s), averaged over well-behaved clients."""
        good = [at for at, one in enumerate(self.facts.clients) if not one.misbehaving]
        here = [at for at in good if self.sessions["ttft"].samples[at].n] or good
        return mean_of_clients(self.sessions[name], here, percent, self.facts, self.lost_word)

    @cached_property
    def sides(self) -> TwoSides | None:
        """The prefill workers and the decode workers; None if workers are not disaggregated."""
        return sides_of(self.tables, self.facts)

    @property
    def both_sides(self) -> TwoSides:
        """The prefill workers and the decode workers of a disaggregated run."""
        assert self.sides is not None
        return self.sides

    def busy_ratio(self, side: int) -> float:
        """Return the busy fraction of the prefill workers (``side`` 0) or decode workers (1)."""
        workers = float(self.both_sides.workers[side])
        return ratio(float(self.both_sides.busy_s[side]), workers * self.facts.horizon_s)

    @cached_property
    def limit_values(self) -> Mapping[str, Any]:
        """The metrics of the module ``limit``, or an empty mapping if they cannot be computed."""
        return limit_values(self.tables, self.cut, self.fair_shares)
