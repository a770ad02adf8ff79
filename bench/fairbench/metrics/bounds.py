"""Theorem bounds on the service gap, from plain numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.metrics.instants import Instants
from fairbench.metrics.ragged import in_order, spread
from fairbench.metrics.records import Facts, Floats, Requests, Service
from fairbench.metrics.service_log import ServiceLog
from fairbench.metrics.stretches import Stretches, step_times


def dlpm_unit(largest_input: int, tokens: int, weights: ServiceWeights) -> int:
    """Return U = w_e * L_input + w_q * M in weighted tokens, one client's overdraft.

    ``tokens`` is M, the KV pool, or ``largest_remaining_output`` where that is more.

    Args:
        largest_input: L_input, the most input tokens of any request.
        tokens: M, in tokens.
        weights: Weights of extend and output tokens.
    """
    return weights.extend * largest_input + weights.output * tokens


def vtc_unit(largest_input: int, pool: int, weights: ServiceWeights, remaining: int = 0) -> int:
    """Return U_v in weighted tokens: how far a counter can exceed the least waiting one.

    max(w_p * L_input, w_q * M) ([VTC] Lemma 4.3) where admission reserves prompt and all outputs in
    M. Without that, w_p * L_input + w_q * ``remaining``, the ``largest_remaining_output``, if that
    is more (docs/appendix/theory.md).

    Args:
        largest_input: L_input, the most input tokens of any request.
        pool: M, the KV pool of a worker, in tokens.
        weights: Weights of extend and output tokens.
        remaining: Result of ``largest_remaining_output``, in tokens; 0 if it does not count.
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

    2 * |W| * (U + Q^u) for DLPM and D2LPM ([DLPM] Theorems 4.1, 5.1), and 2 * |W| * U_v for VTC,
    whose quantum is 0 ([VTC] Theorem 4.4); weights and |W| are the bound's. ``pool`` is M,
    ``remaining`` the ``largest_remaining_output``. Proofs: docs/appendix/theory.md.

    With ``client_weights`` the bound is on service over weight, |W_f/w_f - W_g/w_g|, and for
    clients f, g the bound is |W| * (2 Q^u + U/w_f + U/w_g), here for the two lightest. The proofs
    hold line by line: DLPM refills both by w Q^u equally often while both wait, and each credit
    stays within (-U, w Q^u]; under VTC a client's counter is at most U_v/w above the least that
    waits.
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

    Args:
        requests: Table of the run's requests.
        log: The run's service log.
        facts: Facts about the run that the tables do not contain.
    """
    clients = len(facts.clients)
    here = requests.take(~np.isnan(requests.admitted_s))
    # Between a client's own admissions it only gets less: no other instant need be looked at.
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
