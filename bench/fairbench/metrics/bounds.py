"""Proved bounds on the service gap, and the numbers of a run from which they are computed."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.metrics.arrays import in_order, spread
from fairbench.metrics.reasons import NAN
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Requests, Service
from fairbench.metrics.service import Stretches, step_times
from fairbench.metrics.tables import ServiceRows

Side: TypeAlias = Literal["left", "right"]


class Instants:
    """The distinct times of events in each numbered queue, in seconds.

    ``queue`` and ``at_s`` have one element for each event. Methods take only the distinct times of
    a log, because many rows have equal times. ``stretch`` is the index of each row's time among the
    distinct times. Rows are looked up fastest if they are sorted by queue.
    """

    def __init__(self, queue: Ints, at_s: Floats) -> None:
        self._times = np.unique(at_s)
        self._stride = len(self._times) + 2
        # ``late`` has one more key for each queue, to which ``landed`` assigns all amounts after
        # the queue's last event.
        late = np.unique(queue) * self._stride + len(self._times)
        every = np.arange(len(queue))
        self._keys = np.unique(np.concatenate([self._key(queue, at_s, every, "left"), late]))
        self._queues = self._keys // self._stride

    def _key(self, queue: Ints, at_s: Floats, stretch: Ints, side: Side) -> Ints:
        keys: Ints = queue * self._stride + np.searchsorted(self._times, at_s, side)[stretch]
        return keys

    def fall_within(self, queue: Ints, start_s: Floats, end_s: Floats, stretch: Ints) -> Flags:
        """Return, for each row, whether an event of the row's queue lies in (start, end].

        ``queue``, ``stretch`` and the result have the shape (n_rows,), and ``start_s`` and
        ``end_s`` have the shape (n_stretches,).
        """
        first = sorted_positions(self._keys, self._key(queue, start_s, stretch, "right"))
        after = sorted_positions(self._keys, self._key(queue, end_s, stretch, "right"))
        within: Flags = first < after
        return within

    def landed(self, queue: Ints, at_s: Floats, stretch: Ints, amount: Ints | Floats) -> Floats:
        """Return, for each event, the sum of ``amount`` since the previous event of the same queue.

        Row i adds ``amount[i]`` to queue ``queue[i]`` at the time ``at_s[stretch[i]]``. ``queue``,
        ``stretch`` and ``amount`` have the shape (n_rows,).
        """
        count = len(self._keys)
        if not count:
            return np.zeros(0)
        place = sorted_positions(self._keys, self._key(queue, at_s, stretch, "left"))
        known = np.append(self._queues, -1)[place] == queue
        if not known.all():
            place, amount = place[known], amount[known]
        return np.bincount(place, weights=amount, minlength=count).astype(np.float64)

    def running(self, landed: Floats) -> Floats:
        """Return the running total, for each queue separately, of a result of ``landed``."""
        total = np.cumsum(landed)
        begin = np.flatnonzero(np.diff(self._queues, prepend=-1))
        before = np.repeat((total - landed)[begin], np.diff(begin, append=len(self._queues)))
        sums: Floats = total - before
        return sums


def sorted_positions(keys: Ints, values: Ints) -> Ints:
    """Return ``np.searchsorted(keys, values)``, but faster than numpy for many sorted values."""
    if len(values) <= len(keys) or np.any(values[1:] < values[:-1]):
        return np.searchsorted(keys, values)
    # ``behind`` holds, for each key, the index of the first element of ``values`` above the key.
    behind = np.searchsorted(values, keys, "right")
    found: Ints = np.cumsum(np.bincount(behind, minlength=len(values)))[: len(values)]
    return found


def dlpm_unit(largest_input: int, tokens: int, weights: ServiceWeights) -> int:
    """Return U, the largest debt of a client, in weighted tokens.

    U is w_e * L_input + w_q * M. ``weights`` holds the prices w_e of an input token and w_q of an
    output token. ``largest_input`` is L_input, the most input tokens of any request. ``tokens`` is
    M, the KV pool's size in tokens, or the result of ``largest_remaining_output`` if that result is
    larger.
    """
    return weights.extend * largest_input + weights.output * tokens


def vtc_unit(largest_input: int, pool: int, weights: ServiceWeights, remaining: int = 0) -> int:
    """Return U_v: how far a counter can exceed the lowest counter of a waiting client.

    The result is in weighted tokens; w_p and w_q are the prices of input and output, and the KV
    pool has M tokens. If admission reserves memory for the prompt and all outputs, U_v is max(w_p *
    L_input, w_q * M) ([VTC] Lemma 4.3). Without this reservation, U_v is max(w_p * L_input, w_q *
    M, w_p * L_input + w_q * ``remaining``) (docs/appendix/theory.md).

    Args:
        largest_input: L_input, the most input tokens of any request.
        pool: KV pool of a worker in tokens (M in the paper).
        weights: The prices w_p of an input token and w_q of an output token.
        remaining: The largest remaining output, in tokens (``largest_remaining_output``).
    """
    weighted = weights.extend * largest_input
    reserved = max(weighted, weights.output * pool)
    return max(reserved, weighted + weights.output * remaining)


def theorem_bound(
    bound: ServiceBound,
    largest_input: int,
    pool: int,
    client_weights: ArrayLike = (1.0, 1.0),
    remaining: int = 0,
) -> float:
    """Return the largest service difference that a theorem allows between two backlogged clients.

    The largest service difference is in weighted tokens. For DLPM and D2LPM with |W| workers,
    quantum Q^u and largest debt U (``dlpm_unit``), the bound is 2 * |W| * (U + Q^u) ([DLPM]
    Theorems 4.1, 5.1). For VTC, whose quantum is 0, the bound is 2 * |W| * U_v ([VTC] Theorem 4.4),
    with ``vtc_unit`` U_v. The page docs/appendix/theory.md proves the bounds for DLPM and VTC.

    With ``client_weights``, each client's service is divided by its weight. For weighted clients,
    the DLPM bound is |W| * (2 Q^u + U/w_f + U/w_g). |W| is the number of workers, Q^u the quantum,
    U the largest debt, and w_f and w_g are the two lowest weights.

    Args:
        bound: The quantum Q^u, the number of workers |W| and the prices of tokens.
        largest_input: L_input, the most input tokens of any request.
        pool: M, the KV pool of a worker in tokens.
        client_weights: The weights of the clients, shape (n_clients,).
        remaining: The largest remaining output, in tokens (``largest_remaining_output``).
    """
    if bound.quantum_tokens:
        overdraft = dlpm_unit(largest_input, max(pool, remaining), bound.weights)
    else:
        overdraft = vtc_unit(largest_input, pool, bound.weights, remaining)
    lightest = np.sort(np.asarray(client_weights, dtype=np.float64))[:2]
    overdrafts = overdraft / lightest[0] + overdraft / lightest[-1]
    return float(bound.workers * (2 * bound.quantum_tokens + overdrafts))


def largest_input(requests: Requests) -> int:
    """Return L_input, the most input tokens of any admitted request; 0 if none was admitted."""
    admitted = requests.input_tokens[~np.isnan(requests.admitted_s)]
    return int(admitted.max(initial=0))


def largest_remaining_output(requests: Requests, log: ServiceRows, facts: Facts) -> int:
    """Return the largest remaining output, in tokens, of any client on any worker.

    A client's remaining output is the number of tokens that its admitted requests, even retracted
    ones, produce later in the run. The remaining output can exceed the KV pool's size if memory is
    over-committed.
    """
    clients = len(facts.clients)
    here = requests.take(~np.isnan(requests.admitted_s))
    # Between two admissions, a client's number of remaining output tokens only falls, so the number
    # is highest at an admission.
    queue, every = here.worker * clients + here.client, np.arange(len(here))
    instants = Instants(queue, here.admitted_s)
    remaining = instants.landed(queue, here.admitted_s, every, here.output_tokens)
    for part in log.parts():
        remaining -= _produced(part, facts.workers, clients, instants)
    return int(instants.running(remaining).max(initial=0.0))


def _produced(part: Service, workers: int, clients: int, instants: Instants) -> Floats:
    """Return each client's output tokens on each worker between consecutive ``instants``."""
    own = Stretches.of_log(part)
    order, _ = in_order(part.worker * clients + part.client, workers * clients)
    queue, stretch = (part.worker * clients + part.client)[order], own.of_row[order]
    cut = instants.fall_within(queue, own.start_s, own.end_s, stretch) & (own.steps > 1)[stretch]
    tokens = part.output_tokens[order]
    made = instants.landed(queue, own.end_s, stretch, np.where(cut, 0, tokens))
    place, number = spread(np.ones(np.count_nonzero(cut), dtype=np.int64), own.steps[stretch[cut]])
    at_s = step_times(own, stretch[cut][place], number)
    each = (tokens[cut] / own.steps[stretch[cut]])[place]
    made += instants.landed(queue[cut][place], at_s, np.arange(len(at_s)), each)
    return made


def gap_bound(requests: Requests, log: ServiceRows, facts: Facts) -> float:
    """Return the proved bound on the service gap in weighted tokens; NaN if no theorem applies."""
    if facts.bound is None:
        return NAN
    remaining = largest_remaining_output(requests, log, facts)
    longest = largest_input(requests)
    return theorem_bound(facts.bound, longest, facts.pool_tokens, facts.client_weights, remaining)
