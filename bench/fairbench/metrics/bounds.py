"""Theorem bounds on the service gap, from plain numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.metrics.instants import Instants
from fairbench.metrics.records import Facts, Floats, Ints, Requests, Service
from fairbench.metrics.service import step_ends
from fairbench.metrics.service_log import ServiceLog


def dlpm_unit(largest_input: int, tokens: int, weights: ServiceWeights) -> int:
    """U = w_e * L_input + w_q * M, weighted tokens ([DLPM] Table 1): one client's overdraft.

    ``tokens`` is M, the KV pool, or ``largest_remaining_output`` where that is more.
    """
    return weights.extend * largest_input + weights.output * tokens


def vtc_unit(largest_input: int, pool: int, weights: ServiceWeights, remaining: int = 0) -> int:
    """U_v, weighted tokens: how far a client's counter gets beyond the least that waits.

    max(w_p * L_input, w_q * M) ([VTC] Lemma 4.3) where admission reserves prompt and all outputs
    in M. Without that, w_p * L_input + w_q * ``remaining``, the ``largest_remaining_output``, if
    that is more (docs/theory.md).
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
    """The most that service of two clients backlogged together may differ, in weighted tokens.

    2 * |W| * (U + Q^u) for DLPM and D2LPM ([DLPM] Theorems 4.1, 5.1), and 2 * |W| * U_v for VTC,
    whose quantum is 0 ([VTC] Theorem 4.4); weights and |W| are the bound's. ``pool`` is M,
    ``remaining`` the ``largest_remaining_output``. Proofs: docs/theory.md.

    With ``client_weights`` it is of service over weight, |W_f/w_f - W_g/w_g|, and for clients f, g
    it is |W| * (2 Q^u + U/w_f + U/w_g), here for the two lightest. The proofs hold line by line:
    DLPM refills both by w Q^u equally often while both wait, and each credit stays within
    (-U, w Q^u]; under VTC a client's counter is at most U_v/w above the least that waits.
    """
    if bound.quantum_tokens:
        overdraft = dlpm_unit(largest_input, max(pool, remaining), bound.weights)
    else:
        overdraft = vtc_unit(largest_input, pool, bound.weights, remaining)
    lightest = np.sort(np.asarray(client_weights, dtype=np.float64))[:2]
    overdrafts = overdraft / lightest[0] + overdraft / lightest[-1]
    return float(bound.workers * (2 * bound.quantum_tokens + overdrafts))


def largest_input(requests: Requests) -> int:
    """L_input: the longest input of an admitted request in tokens, 0 if there is none."""
    admitted = requests.input_tokens[~np.isnan(requests.admitted_s)]
    return int(admitted.max(initial=0))


def largest_remaining_output(requests: Requests, log: ServiceLog, facts: Facts) -> int:
    """The most output tokens that a client's admitted requests on one worker still had to make.

    Taken just after every admission, from what the requests really produced in this run. Where
    memory is over-committed it can be more than M: then a client decodes more than the pool without
    a new admission. A retracted request counts as if it were still running.
    """
    clients = len(facts.clients)
    here = requests.take(~np.isnan(requests.admitted_s))
    # Between a client's own admissions it only gets less: no other instant need be looked at.
    instants = Instants(here.worker * clients + here.client, here.admitted_s)
    remaining = instants.landed(
        here.worker * clients + here.client, here.admitted_s, here.output_tokens
    )
    for part in log.parts():
        remaining -= _made(part, part.worker * clients + part.client, instants)
    return int(instants.running(remaining).max(initial=0.0))


def _made(part: Service, queue: Ints, instants: Instants) -> Floats:
    """What the rows of a part make by each of the instants of their queue."""
    cut = instants.fall_within(queue, part.start_s, part.end_s) & (part.steps > 1)
    whole = np.flatnonzero(~cut)
    row, at_s = step_ends(part, np.flatnonzero(cut))
    made = instants.landed(queue[whole], part.end_s[whole], part.output_tokens[whole])
    tokens = part.output_tokens[row] / part.steps[row]
    made += instants.landed(queue[row], at_s, tokens)
    return made
