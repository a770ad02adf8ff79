"""Theorem bounds on the service gap, from plain numbers."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.metrics.arrays import in_order, spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Requests, Service
from fairbench.metrics.stretches import Stretches, step_times
from fairbench.metrics.tables import ServiceLog

Side: TypeAlias = Literal["left", "right"]


class Instants:
    """The distinct instants ``at_s`` of each queue, which ``queue`` identifies by any integers.

    Callers with many rows pass the times of their stretches, and the ``stretch`` of each row. Rows
    that are sorted by queue are found faster.
    """

    def __init__(self, queue: Ints, at_s: Floats) -> None:
        self._times = np.unique(at_s)
        self._stride = len(self._times) + 2
        # An extra slot for each queue, after its instants, takes events after the last instant.
        late = np.unique(queue) * self._stride + len(self._times)
        every = np.arange(len(queue))
        self._keys = np.unique(np.concatenate([self._key(queue, at_s, every, "left"), late]))
        self._queues = self._keys // self._stride

    def _key(self, queue: Ints, at_s: Floats, stretch: Ints, side: Side) -> Ints:
        keys: Ints = queue * self._stride + np.searchsorted(self._times, at_s, side)[stretch]
        return keys

    def fall_within(self, queue: Ints, start_s: Floats, end_s: Floats, stretch: Ints) -> Flags:
        """Return whether one of a queue's instants lies in (start, end].

        ``queue``, ``stretch`` (an index) and the result have one element per row, the times one per
        stretch.
        """
        first = places(self._keys, self._key(queue, start_s, stretch, "right"))
        after = places(self._keys, self._key(queue, end_s, stretch, "right"))
        within: Flags = first < after
        return within

    def landed(self, queue: Ints, at_s: Floats, stretch: Ints, amount: Ints | Floats) -> Floats:
        """Return, for each instant, the sum of the amounts that arrived since the previous one."""
        count = len(self._keys)
        if not count:
            return np.zeros(0)
        place = places(self._keys, self._key(queue, at_s, stretch, "left"))
        known = np.append(self._queues, -1)[place] == queue
        if not known.all():
            place, amount = place[known], amount[known]
        return np.bincount(place, weights=amount, minlength=count).astype(np.float64)

    def running(self, landed: Floats) -> Floats:
        """Return the amounts that had arrived by each instant: sums of ``landed``."""
        total = np.cumsum(landed)
        begin = np.flatnonzero(np.diff(self._queues, prepend=-1))
        before = np.repeat((total - landed)[begin], np.diff(begin, append=len(self._queues)))
        sums: Floats = total - before
        return sums


def places(keys: Ints, values: Ints) -> Ints:
    """Return ``np.searchsorted(keys, values)``, faster for many sorted values."""
    if len(values) <= len(keys) or np.any(values[1:] < values[:-1]):
        return np.searchsorted(keys, values)
    behind = np.searchsorted(values, keys, "right")  # all later values are behind the key
    found: Ints = np.cumsum(np.bincount(behind, minlength=len(values)))[: len(values)]
    return found


def dlpm_unit(largest_input: int, tokens: int, weights: ServiceWeights) -> int:
    """Return U = w_e * L_input + w_q * M in weighted tokens, one client's overdraft.

    ``largest_input`` is L_input, the most input tokens of any request. ``tokens`` is M: the KV
    pool, or ``largest_remaining_output`` if that is larger.
    """
    return weights.extend * largest_input + weights.output * tokens


def vtc_unit(largest_input: int, pool: int, weights: ServiceWeights, remaining: int = 0) -> int:
    """Return U_v in weighted tokens: the largest lead of a counter over the least waiting client's.

    U_v is max(w_p * L_input, w_q * M) ([VTC] Lemma 4.3) if admission reserves prompt and all
    outputs in M. Otherwise U_v is w_p * L_input + w_q * ``remaining``, the
    ``largest_remaining_output``, if that is larger (docs/appendix/theory.md). ``largest_input`` is
    L_input, the most input tokens of any request, and ``pool`` is M, the KV pool of a worker in
    tokens.
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
    """Return the largest allowed service difference of two backlogged clients.

    The bound is 2 * |W| * (U + Q^u) for DLPM and D2LPM ([DLPM] Theorems 4.1, 5.1), and 2 * |W| *
    U_v for VTC, whose quantum is 0 ([VTC] Theorem 4.4); weights and |W| are the bound's. ``pool``
    is M, ``remaining`` the ``largest_remaining_output``. Proofs: docs/appendix/theory.md.

    With ``client_weights`` the bound applies to service over weight, |W_f/w_f - W_g/w_g|: for
    clients f and g it is |W| * (2 Q^u + U/w_f + U/w_g), here for the two clients of least weight.
    The proofs hold line by line: DLPM refills both by w Q^u equally often while both wait, and each
    credit stays within (-U, w Q^u]; under VTC a client's counter is at most U_v/w above the least
    counter of a waiting client.
    """
    if bound.quantum_tokens:
        overdraft = dlpm_unit(largest_input, max(pool, remaining), bound.weights)
    else:
        overdraft = vtc_unit(largest_input, pool, bound.weights, remaining)
    lightest = np.sort(np.asarray(client_weights, dtype=np.float64))[:2]
    overdrafts = overdraft / lightest[0] + overdraft / lightest[-1]
    return float(bound.workers * (2 * bound.quantum_tokens + overdrafts))


def largest_input(requests: Requests) -> int:
    """Return L_input: the longest input of an admitted request in tokens; 0 without one."""
    admitted = requests.input_tokens[~np.isnan(requests.admitted_s)]
    return int(admitted.max(initial=0))


def largest_remaining_output(requests: Requests, log: ServiceLog, facts: Facts) -> int:
    """Return the most output tokens that a client's requests on a worker still had to make.

    The value is taken just after every admission, from the outputs that the run really produced.
    With over-committed memory it can exceed M: a client then decodes more than the pool without a
    new admission. A retracted request counts as still running.
    """
    clients = len(facts.clients)
    here = requests.take(~np.isnan(requests.admitted_s))
    # Between a client's own admissions the value only falls, so no other instant needs to be
    # examined.
    queue, every = here.worker * clients + here.client, np.arange(len(here))
    instants = Instants(queue, here.admitted_s)
    remaining = instants.landed(queue, here.admitted_s, every, here.output_tokens)
    for part in log.parts():
        remaining -= _made(part, facts.workers, clients, instants)
    return int(instants.running(remaining).max(initial=0.0))


def _made(part: Service, workers: int, clients: int, instants: Instants) -> Floats:
    """Return the tokens made by the rows of a part until each instant of their queue."""
    own = Stretches.of(part)
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
