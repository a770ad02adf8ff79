"""Stalls: how long answers in progress are held up, and by whose prompts.

A batch that computes prompts delays every sequence that decodes on the same replica. Clients are
held responsible for a stall in proportion to the prompt tokens that were computed for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, nan
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Requests, Service
from fairbench.metrics.tables import ServiceRows
from fairbench.targets import RequestCosts

MOST_CLIENTS = 30  # ``Stalls.matrix_s`` is computed for runs with at most this many clients.
STALL_S = 0.5  # A gap of at least this many seconds between two tokens of an answer is a stall.
STALL_STEPS = 4.0  # A stall lasts at least this multiple of a decode step of a lone request.
_MARGIN_S = 1e-6  # Times that differ by less than this many seconds count as equal.
# Gaps between tokens are counted in bins from 1 us to 10 days. Each bin is 1% wider than the
# previous bin.
_SHORTEST_S, _GROWTH, _BINS = 1e-6, 1.01, 2_800


class Answers(NamedTuple):
    """The periods in which requests decode: a row per request, two for a retracted request."""

    worker: Ints
    client: Ints
    begin_s: Floats
    end_s: Floats

    def take(self, rows: Flags) -> Answers:
        """Return the rows that a boolean mask selects."""
        return Answers._make(column[rows] for column in self)


class Rows(NamedTuple):
    """The rows of one worker's log: one row per client and stretch (period of an unchanged batch).

    - ``stretch`` is the index of the row's stretch (consecutive steps) in ``Steps``.
    - ``prompt_s`` is the time by which the client's prompts delay sequences that decode.
    """

    client: Ints
    stretch: Ints
    computed_tokens: Ints
    output_tokens: Ints
    prompt_s: Floats

    def take(self, rows: Flags | Ints) -> Rows:
        """Return the rows that a mask or an index array selects."""
        return Rows._make(column[rows] for column in self)


class Steps(NamedTuple):
    """The stretches (periods of an unchanged batch) of one worker's log, shape (stretches,).

    - ``first_s`` is the end of each stretch's first engine step, in seconds.
    - ``later`` is the number of steps after each stretch's first step, and ``rest_s`` is their mean
      duration in seconds.
    - ``last_s`` is the end of the last decode step before each stretch (period of an unchanged
      batch).
    - ``decodes`` marks the stretches in which sequences decode.
    """

    start_s: Floats
    end_s: Floats
    first_s: Floats
    later: Ints
    rest_s: Floats
    last_s: Floats
    decodes: Flags


class Gaps:
    """The gaps between tokens of each client: a histogram, and the largest gaps."""

    def __init__(self, clients: int, limit_s: float) -> None:
        self._limit_s = limit_s
        self._bins = np.zeros((clients, _BINS))
        self.largest_s = np.full(clients, nan)
        self.above = np.zeros(clients)
        # Row 0 is for gaps in which no other client's prompt was computed, row 1 for all other
        # gaps.
        self._tokens, self._time_s = np.zeros((2, clients)), np.zeros((2, clients))

    def add(
        self, client: Ints, gap: Ints, gap_s: Floats, tokens: Floats, beside: Flags | None = None
    ) -> None:
        """Count tokens by the gap before them; gap number g lasts ``gap_s[g]`` seconds.

        ``beside`` is true if prompts of other clients were computed in the gap before a token.
        """
        some = tokens > 0
        kind = np.zeros(len(some), np.int64) if beside is None else beside.astype(np.int64)
        client, gap, tokens, kind = client[some], gap[some], tokens[some], kind[some]
        gap_s = np.maximum(gap_s, _SHORTEST_S)
        clients = len(self.above)
        bins = np.minimum(np.log(gap_s / _SHORTEST_S) / log(_GROWTH), _BINS - 1).astype(np.int64)
        found = np.bincount(client * _BINS + bins[gap], tokens, clients * _BINS)
        self._bins += found.reshape(clients, _BINS)
        np.fmax.at(self.largest_s, client, gap_s[gap])
        above = (gap_s > self._limit_s)[gap]
        self.above += np.bincount(client[above], tokens[above], clients)
        cells, time_s = kind * clients + client, tokens * gap_s[gap]
        self._tokens += np.bincount(cells, tokens, 2 * clients).reshape(2, clients)
        self._time_s += np.bincount(cells, time_s, 2 * clients).reshape(2, clients)

    def pace_ratios(self) -> list[float]:
        """Divide each client's token rate during other clients' prefills by its usual rate."""
        pairs = zip(self._tokens.T.tolist(), self._time_s.T.tolist(), strict=True)
        return [
            ratio(ratio(tokens[1], time_s[1]), ratio(tokens[0], time_s[0]))
            for tokens, time_s in pairs
        ]

    def tokens(self) -> list[float]:
        """Return each client's number of output tokens with a known gap to the previous token."""
        counts: list[float] = self._bins.sum(axis=1).tolist()
        return counts

    def percentile_s(self, percent: float) -> list[float]:
        """Return a percentile of each client's gaps between tokens (s), at most 1% too large."""
        upto = np.cumsum(self._bins, axis=1)
        needed = percent / 100 * upto[:, -1:] - _MARGIN_S
        at = np.argmax(upto >= needed, axis=1)
        ends_s = np.minimum(_SHORTEST_S * _GROWTH ** (at + 1), self.largest_s)
        found: list[float] = np.where(upto[:, -1] > 0, ends_s, nan).tolist()
        return found


@dataclass(frozen=True, slots=True)
class Stalls:
    """The time in seconds for which prefills stalled the answers of each client in a run.

    - ``by_others_s`` is the time for which prompts of other clients held up a client's answers.
    - ``by_own_s`` is the time for which the client's own prompts held up its answers.
    - ``matrix_s`` is the time for which the prompts of one client (column) held up the answers of a
      client (row). ``matrix_s`` is None for more than ``MOST_CLIENTS`` clients.
    - ``answer_s`` is the sum of the durations of a client's answers.
    - ``gaps`` holds the gaps between tokens, by client.
    """

    by_others_s: Floats
    by_own_s: Floats
    matrix_s: Floats | None
    answer_s: Floats
    gaps: Gaps

    def per_minute(self) -> list[float]:
        """Return how many seconds per minute of answers other clients stall each client."""
        pairs = zip(self.by_others_s.tolist(), self.answer_s.tolist(), strict=True)
        return [60 * ratio(stalled_s, answer_s) for stalled_s, answer_s in pairs]


def stalls_of(requests: Requests, log: ServiceRows, facts: Facts) -> Stalls | None:
    """Return the stalls of a run; None if batches or the costs of decode steps are unknown."""
    if facts.costs is None:
        return None
    clients = len(facts.clients)
    answers = answers_of(requests, facts.horizon_s)
    gaps = Gaps(clients, stall_limit_s(facts))
    total_s, own_s = np.zeros(clients), np.zeros(clients)
    matrix_s = np.zeros((clients, clients)) if clients <= MOST_CLIENTS else None
    ends_s: dict[int, float] = {}  # end (s) of each worker's last decode step, by worker
    # ``asked`` maps each worker to the requests whose answers the worker generates.
    asked: dict[int, Requests] = {}
    for part in log.parts():
        if part.gpu_s is None:
            return None
        for worker in np.unique(part.worker).tolist():
            steps, rows = _stretches(
                part.take(np.flatnonzero(part.worker == worker)),
                facts.costs,
                ends_s.get(worker, -np.inf),
            )
            ends_s[worker] = float(steps.end_s[steps.decodes].max(initial=-np.inf))
            here = answers.take(
                (answers.worker == worker)
                & (answers.end_s > steps.start_s[0])
                & (answers.begin_s < steps.end_s[-1])
            )
            prompts = rows.take(rows.computed_tokens > 0)
            total_s += by_client(here, _held_up_s(here, steps, prompts), clients)
            own_s += by_client(here, _held_up_by_own_s(here, steps, prompts), clients)
            if matrix_s is not None:
                for client in range(clients):
                    held_s = _held_up_s(here, steps, prompts.take(prompts.client == client))
                    matrix_s[:, client] += by_client(here, held_s, clients)
            if worker not in asked:
                asked[worker] = requests.take(np.flatnonzero(_decode_worker(requests) == worker))
            _add_gaps(gaps, asked[worker], steps, rows)
    answer_s = by_client(answers, answers.end_s - answers.begin_s, clients)
    return Stalls(np.maximum(0.0, total_s - own_s), own_s, matrix_s, answer_s, gaps)


def stall_limit_s(facts: Facts) -> float:
    """Return the shortest gap between two tokens, in seconds, that counts as a stall."""
    return max(STALL_S, STALL_STEPS * facts.lone.step_s) if facts.lone else STALL_S


def answers_of(requests: Requests, horizon_s: float) -> Answers:
    """Return when requests decode, from the first token to the end of each request.

    A request does not decode from its last retraction to its next admission.
    """
    worker = _decode_worker(requests)
    begun = np.isfinite(requests.first_token_s) & (worker >= 0)
    end_s = np.where(np.isfinite(requests.finish_s), requests.finish_s, horizon_s)
    cut = begun & (requests.retracted_s >= requests.first_token_s) & (requests.retracted_s < end_s)
    back_s = np.where(np.isfinite(requests.readmitted_s), requests.readmitted_s, end_s)
    again = cut & (back_s < end_s)
    parts = (
        (begun, requests.first_token_s, np.where(cut, requests.retracted_s, end_s)),
        (again, back_s, end_s),
    )
    return Answers(
        np.concatenate([worker[rows] for rows, _, _ in parts]),
        np.concatenate([requests.client[rows] for rows, _, _ in parts]),
        np.concatenate([begin[rows] for rows, begin, _ in parts]),
        np.concatenate([np.maximum(begin, end)[rows] for rows, begin, end in parts]),
    )


def _decode_worker(requests: Requests) -> Ints:
    return requests.worker if requests.decode_worker is None else requests.decode_worker


def by_client(answers: Answers, values: Floats, clients: int) -> Floats:
    """Return the sum of ``values`` over the answers of each client, shape (clients,)."""
    return np.bincount(answers.client, values, clients).astype(np.float64)


def _stretches(log: Service, costs: RequestCosts, ended_s: float) -> tuple[Steps, Rows]:
    """Return the tables ``Steps`` and ``Rows`` for a part of one worker's service log.

    ``ended_s`` is the end of the last decode step before ``log`` begins.
    """
    start_s, first, stretch = np.unique(log.start_s, return_index=True, return_inverse=True)
    end_s, count = log.end_s[first], log.steps[first]
    computed = (log.extend_tokens + log.recompute_tokens).astype(np.float64)
    every = np.bincount(stretch, computed, len(first))
    outputs = np.bincount(stretch, log.output_tokens, len(first))
    context, length_s = log.context_tokens[first], end_s - start_s
    mixed = np.flatnonzero((context > 0) & (every > 0))
    # ``decode_s`` holds the time that each decode step would take without prompts.
    decode_s = np.zeros(len(first))
    decode_s[mixed] = [
        costs.decode_step_s(max(1, int(outputs[at])), int(context[at])) for at in mixed
    ]
    prompt_s = np.where(every > 0, np.maximum(0.0, length_s - decode_s), 0.0)
    # While a batch is unchanged, each decode step takes ``step_growth_s`` longer than the previous
    # step.
    step_s = length_s / count - log.step_growth_s[first] * (count - 1) / 2
    rest_s = (length_s - step_s) / np.maximum(count - 1, 1)
    decodes = context > 0
    last_s = np.full(len(first), ended_s)
    last_s[1:] = np.maximum.accumulate(np.where(decodes, end_s, ended_s))[:-1]
    steps = Steps(start_s, end_s, start_s + step_s, count - 1, rest_s, last_s, decodes)
    part_s = prompt_s[stretch] * computed / np.maximum(every, 1)[stretch]
    order = np.argsort(_keys(log.client, stretch))
    rows = Rows(log.client, stretch, computed.astype(np.int64), log.output_tokens, part_s)
    return steps, rows.take(order)


def _held_up_s(answers: Answers, steps: Steps, prompts: Rows) -> Floats:
    """Return the seconds by which the given prompts delayed each answer, shape (answers,).

    The delay caused by a prompt is spread evenly over the period in which the prompt is computed.
    """
    at, first = np.unique(prompts.stretch, return_index=True)
    if not len(at):
        return np.zeros(len(answers.client))
    every_s = np.add.reduceat(prompts.prompt_s, first)
    after_s = np.cumsum(every_s)
    times_s = np.column_stack([steps.start_s[at], steps.end_s[at]]).ravel()
    sums_s = np.column_stack([after_s - every_s, after_s]).ravel()
    return growth(times_s, sums_s, answers.begin_s, answers.end_s)


def _held_up_by_own_s(answers: Answers, steps: Steps, prompts: Rows) -> Floats:
    """Return the seconds for which the client's own prompts held up each answer.

    Each client's times are shifted by more than the run's length, so that one call of ``growth``
    can handle all clients.
    """
    if not len(prompts.client):
        return np.zeros(len(answers.client))
    order = np.lexsort((prompts.stretch, prompts.client))
    client, at, own_s = (
        column[order] for column in (prompts.client, prompts.stretch, prompts.prompt_s)
    )
    period_s = 2.0 + steps.end_s[-1] + answers.end_s.max(initial=0.0)
    after_s = np.cumsum(own_s)
    times_s = np.column_stack([steps.start_s[at], steps.end_s[at]]) + (client * period_s)[:, None]
    sums_s = np.column_stack([after_s - own_s, after_s]).ravel()
    shift_s = answers.client * period_s
    begin_s, end_s = answers.begin_s + shift_s, answers.end_s + shift_s
    return growth(times_s.ravel(), sums_s, begin_s, end_s)


def growth(times_s: Floats, sums: Floats, begin_s: Floats, end_s: Floats) -> Floats:
    """Return the increase of the interpolated ``sums`` from each ``begin_s`` to its ``end_s``."""
    grown: Floats = np.interp(end_s, times_s, sums) - np.interp(begin_s, times_s, sums)
    return grown


def _add_gaps(gaps: Gaps, requests: Requests, steps: Steps, rows: Rows) -> None:
    """Add the gaps between tokens that one worker generated in a part of the log.

    The gap before a request's second token is the time since its first token. The gap before the
    third or a later token is the time since the worker's last decode step.
    """
    made = _first_tokens(requests, steps, rows)
    here = made >= 0
    more = here & (requests.output_tokens > 1)
    decoding = np.flatnonzero(steps.decodes)
    places = np.searchsorted(decoding, made[more], "right")
    known = places < len(decoding)
    second = decoding[places[known]]
    asking = requests.client[more][known]
    since_s = steps.first_s[second] - requests.first_token_s[more][known]
    others = OtherPrompts(rows, len(steps.decodes))
    beside = others.between(asking, made[more][known], second)
    gaps.add(asking, np.arange(len(second)), since_s, np.ones(len(second)), beside)
    firsts = _counts(rows, requests.client[here], made[here])
    seconds = _counts(rows, asking, second)
    each = rows.output_tokens / (steps.later[rows.stretch] + 1)
    each = np.where(rows.computed_tokens > 0, np.maximum(0.0, each - firsts), each)
    at = rows.stretch
    each = np.where(steps.decodes[at], each, 0.0)
    since_last = np.where(np.isfinite(steps.last_s[at]), np.maximum(0.0, each - seconds), 0.0)
    before = np.append(-1, np.maximum.accumulate(np.where(steps.decodes, np.arange(
        len(steps.decodes)), -1))[:-1])  # fmt: skip
    beside = others.between(rows.client, before[at], at)
    gaps.add(rows.client, at, steps.first_s - steps.last_s, since_last, beside)
    gaps.add(rows.client, at, steps.rest_s, each * steps.later[at])


class OtherPrompts:
    """A search structure for periods in which prompts of other clients were computed."""

    def __init__(self, rows: Rows, stretches: int) -> None:
        self._stretches = stretches
        computed = np.bincount(rows.stretch, rows.computed_tokens, stretches)
        self._upto = np.append(0.0, np.cumsum(computed))
        prompts = np.flatnonzero(rows.computed_tokens > 0)
        keys = rows.client[prompts] * stretches + rows.stretch[prompts]
        order = np.argsort(keys)
        self._keys = keys[order]
        self._own = np.append(0.0, np.cumsum(rows.computed_tokens[prompts][order]))

    def between(self, client: Ints, after: Ints, upto: Ints) -> Flags:
        """Return whether other clients' prompts ran in the stretches ``after + 1`` to ``upto``."""
        every = self._upto[upto + 1] - self._upto[after + 1]
        first = client * self._stretches
        own = self._own[np.searchsorted(self._keys, first + upto, "right")]
        own = own - self._own[np.searchsorted(self._keys, first + after, "right")]
        others: Flags = every - own > 0
        return others


def _first_tokens(requests: Requests, steps: Steps, rows: Rows) -> Ints:
    """Return the index in ``steps`` at which each request got its first token; -1 if unknown."""
    prompts = np.flatnonzero(rows.computed_tokens > 0)
    first_s = np.where(np.isfinite(requests.first_token_s), requests.first_token_s, -1.0)
    if not len(prompts):
        return np.full(len(first_s), -1)
    prompts = prompts[np.lexsort((rows.stretch[prompts], rows.client[prompts]))]
    period_s = 2.0 + steps.end_s[-1] + first_s.max(initial=0.0)
    ends_s = steps.end_s[rows.stretch[prompts]] + rows.client[prompts] * period_s
    at = np.searchsorted(ends_s, first_s + _MARGIN_S + requests.client * period_s, "right") - 1
    own = prompts[np.maximum(at, 0)]
    is_known = (at >= 0) & (rows.client[own] == requests.client) & (first_s >= steps.start_s[0])
    is_known &= first_s <= steps.end_s[-1] + _MARGIN_S
    return np.where(is_known, rows.stretch[own], -1)


def _keys(client: Ints, stretch: Ints) -> Ints:
    return (stretch << 32) + client


def _counts(rows: Rows, client: Ints, stretch: Ints) -> Floats:
    """Return, for each row of ``rows``, the number of equal pairs (``client``, ``stretch``)."""
    keys, asked = _keys(rows.client, rows.stretch), _keys(client, stretch)
    found = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    same = keys[found] == asked
    return np.bincount(found[same], minlength=len(keys)).astype(np.float64)
