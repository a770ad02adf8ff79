"""Stalls found in recorded gaps between output tokens, and the prompts that caused the longest.

A recorded log does not say when the server computed a prompt. A prompt is assumed to be computed
from the admission of its request to the first token. If the admission time is unknown, the assumed
prefill time is at most ``SLOWER`` times the log's shortest prefill time for prompts of equal
length.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.arrays import in_order
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Requests, TokenGaps
from fairbench.metrics.stalls import (
    MOST_CLIENTS,
    STALL_S,
    STALL_STEPS,
    Gaps,
    Stalls,
    answers_of,
    by_client,
    growth,
)

SLOWER = 2.0
# percentiles of a log that are used as the lowest time per prompt token and the shortest gap
# between tokens
FASTEST, SHORTEST = 5, 10
TOGETHER_S = 1e-3
# A stall has a known cause only if prompts are computed for at least half of the stall.
EXPLAINED = 0.5
LEAST_TOKENS = 1e-3  # Fewer prompt tokens than this in a gap are a rounding error.
MOST_STALLS = 2_000  # maximum number of stalls, the longest ones, whose causes are sought
MOST_CAUSES = 5


class Prompts(NamedTuple):
    """The computed prompts: each prompt's request (row), begin and end (s), and computed tokens."""

    request: Ints
    begin_s: Floats
    end_s: Floats
    tokens: Floats

    def take(self, rows: Flags | Ints) -> Prompts:
        """Return the prompts that a mask or an index array selects."""
        return Prompts._make(column[rows] for column in self)

    def tokens_in(self, begin_s: Floats, end_s: Floats) -> Floats:
        """Return the prompt tokens computed in each given interval, shape (intervals,)."""
        rate = self.tokens / (self.end_s - self.begin_s)
        times_s = np.concatenate([self.begin_s, self.end_s])
        order = np.argsort(times_s, kind="stable")
        times_s, rates = times_s[order], np.cumsum(np.concatenate([rate, -rate])[order])
        upto = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times_s))])
        return growth(times_s, upto, begin_s, end_s)

    def seconds_in(self, begin_s: Floats, end_s: Floats) -> Floats:
        """Return for how many seconds of each interval a prompt is computed, shape (intervals,)."""
        order = np.argsort(self.begin_s, kind="stable")
        until_s = np.maximum.accumulate(self.end_s[order])
        from_s = np.minimum(np.maximum(self.begin_s[order], np.append(-np.inf, until_s[:-1])),
                            until_s)  # fmt: skip
        upto_s = np.cumsum(until_s - from_s)
        times_s = np.column_stack([from_s, until_s]).ravel()
        sums_s = np.column_stack([upto_s - (until_s - from_s), upto_s]).ravel()
        return growth(times_s, sums_s, begin_s, end_s)


class Cause(NamedTuple):
    """A prompt that caused stalls, and the longest of these stalls.

    - ``prompt`` is the prompt's row in the table of requests, or -1 if the prompt is unknown.
    - ``stalls`` is the number of stalls, and ``clients`` is the number of stalled clients.
    - ``request`` is the row of the request with the longest stall, which began at ``start_s`` and
      lasted for ``gap_s`` seconds.
    """

    prompt: int
    stalls: int
    clients: int
    request: int
    start_s: float
    gap_s: float


def prompts_of(requests: Requests) -> Prompts:
    """Return when the prompts of answered requests were computed, as far as this was recorded."""
    rows = np.flatnonzero(np.isfinite(requests.first_token_s) & (requests.extend_tokens > 0))
    first_s, tokens = requests.first_token_s[rows], requests.extend_tokens[rows].astype(np.float64)
    admitted_s = requests.admitted_s[rows]
    # Instead of an unknown admission time, the tables contain the time of the first token.
    is_known = admitted_s < first_s
    begin_s = np.where(is_known, admitted_s, requests.arrival_s[rows])
    if len(rows):
        # The shortest time per token is estimated from long prompts, in which fixed times matter
        # least.
        longer = tokens >= np.median(tokens)
        each_s = ((first_s - begin_s) / tokens)[longer]
        token_s = float(np.percentile(each_s, FASTEST, method="lower"))
        least_s = np.where(is_known, begin_s, first_s - SLOWER * token_s * tokens)
        begin_s = np.maximum(begin_s, least_s)
    return Prompts(rows, np.minimum(begin_s, first_s - 1e-6), first_s, tokens)


def recorded_limit_s(gaps: TokenGaps, facts: Facts) -> float:
    """Return the shortest gap between tokens that counts as a stall, in seconds.

    Without a timing profile, a low percentile (``SHORTEST``) of the gaps between tokens is used as
    the time of a decode step with one request.
    """
    apart_s = gaps.gap_s[gaps.gap_s > TOGETHER_S]
    step_s = float(np.percentile(apart_s, SHORTEST, method="lower")) if len(apart_s) else 0.0
    return max(STALL_S, STALL_STEPS * (facts.lone.step_s if facts.lone else step_s))


def recorded_stalls(requests: Requests, gaps: TokenGaps, facts: Facts) -> Stalls:
    """Return the stalls of a run or a log that records the gaps between tokens.

    If prompts were computed in a gap between tokens, the time beyond the client's usual gap is
    stall time. A gap's stall time never exceeds the time in which prompts were computed in the gap.
    The stall time of a gap is attributed to the clients of the prompts computed in the gap, in
    proportion to the computed tokens.
    """
    clients = len(facts.clients)
    prompts, worker = prompts_of(requests), requests.worker[gaps.request]
    owner, end_s = requests.client[gaps.request], gaps.start_s + gaps.gap_s
    beside = np.zeros(len(owner), np.bool_)
    total_s, own_s = np.zeros(clients), np.zeros(clients)
    matrix_s = np.zeros((clients, clients)) if clients <= MOST_CLIENTS else None
    for one in np.unique(worker).tolist():
        near, here = prompts.take(requests.worker[prompts.request] == one), worker == one
        if not len(near.request):
            continue
        held_s = _held_up_s(near, owner[here], gaps.start_s[here], end_s[here], clients)
        inside = near.tokens_in(gaps.start_s[here], end_s[here])
        some = (held_s > 0) & (inside > LEAST_TOKENS)
        rows, per_token_s = np.flatnonzero(here)[some], held_s[some] / inside[some]
        total_s += np.bincount(owner[rows], held_s[some], clients)
        own_part = np.zeros(len(inside))
        order, bounds = in_order(owner[rows], clients)
        places, ends = in_order(requests.client[near.request], clients)
        for client in np.flatnonzero(np.diff(ends)).tolist():
            theirs = near.take(places[ends[client] : ends[client + 1]])
            mine = order[bounds[client] : bounds[client + 1]] if matrix_s is None else order
            own = np.flatnonzero(owner[here] == client)
            own_part[own] = theirs.tokens_in(gaps.start_s[here][own], end_s[here][own])
            part = theirs.tokens_in(gaps.start_s[rows[mine]], end_s[rows[mine]])
            booked_s = np.bincount(owner[rows[mine]], part * per_token_s[mine], clients)
            own_s[client] += booked_s[client]
            if matrix_s is not None:
                matrix_s[:, client] += booked_s
        beside[here] = inside - own_part > LEAST_TOKENS
    found = Gaps(clients, recorded_limit_s(gaps, facts))
    found.add(owner, np.arange(len(owner)), gaps.gap_s, np.ones(len(owner)), beside)
    answers = answers_of(requests, facts.horizon_s)
    answer_s = by_client(answers, answers.end_s - answers.begin_s, clients)
    return Stalls(np.maximum(0.0, total_s - own_s), own_s, matrix_s, answer_s, found)


def _held_up_s(
    prompts: Prompts, owner: Ints, begin_s: Floats, end_s: Floats, clients: int
) -> Floats:
    """Return the stall time in each gap between tokens, in seconds (see ``recorded_stalls``).

    A client's usual gap between tokens is the median of its gaps in which no prompt is computed. A
    client without such gaps gets the median of all clients' gaps.
    """
    gap_s, beside_s = end_s - begin_s, prompts.seconds_in(begin_s, end_s)
    alone = beside_s <= 0
    usual_s = np.full(clients, np.median(gap_s[alone] if alone.any() else gap_s))
    order, bounds = in_order(owner[alone], clients)
    for client in np.flatnonzero(np.diff(bounds)).tolist():
        usual_s[client] = np.median(gap_s[alone][order[bounds[client] : bounds[client + 1]]])
    held_s: Floats = np.clip(gap_s - usual_s[owner], 0.0, np.maximum(beside_s, 0.0))
    return held_s


def causes_of(requests: Requests, gaps: TokenGaps, facts: Facts) -> list[Cause]:
    """Return the prompts that caused the longest stalls, ordered by their longest stall.

    A stall is attributed to the prompt with the most tokens computed during the stall. The cause is
    unknown if prompts were computed for less than half of the stall.
    """
    long = np.flatnonzero(gaps.gap_s > recorded_limit_s(gaps, facts))
    long = long[np.argsort(-gaps.gap_s[long], kind="stable")][:MOST_STALLS]
    prompts, found = prompts_of(requests), defaultdict[int, list[int]](list)
    for gap in long.tolist():
        found[_cause_of(prompts, requests, gaps, gap)].append(gap)
    causes = []
    for prompt, rows in found.items():
        first, clients = rows[0], np.unique(requests.client[gaps.request[rows]])
        causes.append(
            Cause(
                *(prompt, len(rows), len(clients), int(gaps.request[first])),
                *(float(gaps.start_s[first]), float(gaps.gap_s[first])),
            )
        )
    return sorted(causes, key=lambda one: -one.gap_s)[:MOST_CAUSES]


def _cause_of(prompts: Prompts, requests: Requests, gaps: TokenGaps, gap: int) -> int:
    """Return the row of the request whose prompt caused a stall; -1 if the cause is unknown."""
    begin_s = float(gaps.start_s[gap])
    end_s = begin_s + float(gaps.gap_s[gap])
    near = prompts.take(
        (requests.worker[prompts.request] == requests.worker[gaps.request[gap]])
        & (prompts.begin_s < end_s)
        & (prompts.end_s > begin_s)
    )
    if not len(near.request):
        return -1
    covered_s = near.seconds_in(np.array([begin_s]), np.array([end_s]))[0]
    if covered_s < EXPLAINED * (end_s - begin_s):
        return -1
    inside_s = np.minimum(near.end_s, end_s) - np.maximum(near.begin_s, begin_s)
    return int(near.request[np.argmax(near.tokens * inside_s / (near.end_s - near.begin_s))])


def cause_rows(causes: Sequence[Cause], requests: Requests, names: RequestNames) -> list[Any]:
    """Return causes of stalls as values for JSON, with the names of clients and requests."""
    return [_cause_row(cause, requests, names) for cause in causes]


class RequestNames(NamedTuple):
    """Names of clients, and of requests by row; requests without a name get numbers from 1."""

    clients: Sequence[str]
    requests: Sequence[str]

    def request(self, row: int) -> str:
        """Return a request's name or, without a name, its row number (from 1)."""
        return (self.requests[row] if self.requests else "") or f"{row + 1}"


def _cause_row(cause: Cause, requests: Requests, names: RequestNames) -> dict[str, Any]:
    by = cause.prompt
    known = by >= 0
    return {
        "client": names.clients[int(requests.client[cause.request])],
        "request": names.request(cause.request),
        "start_s": cause.start_s,
        "gap_s": cause.gap_s,
        "by": names.clients[int(requests.client[by])] if known else None,
        "by_request": names.request(by) if known else None,
        "sent_s": float(requests.arrival_s[by]) if known else None,
        "prompt_tokens": int(requests.input_tokens[by]) if known else None,
        "stalls": cause.stalls,
        "clients": cause.clients,
    }
