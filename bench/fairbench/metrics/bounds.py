"""Theorem bounds on the service gap, from plain numbers."""

from __future__ import annotations

import numpy as np

from fairbench.core import ServiceBound, ServiceWeights
from fairbench.metrics.records import Facts, Requests, Service
from fairbench.metrics.service import View, cumulative


def dlpm_unit(largest_input: int, tokens: int, weights: ServiceWeights) -> int:
    """U = w_e * L_input + w_q * M, weighted tokens ([DLPM] Table 1): one client's overdraft.

    ``tokens`` is M, the KV pool, or ``largest_remaining_output`` where that is more.
    """
    return weights.extend * largest_input + weights.output * tokens


def vtc_unit(largest_input: int, tokens: int, weights: ServiceWeights) -> int:
    """U_v = max(w_p * L_input, w_q * M), weighted tokens ([VTC] Lemma 4.3)."""
    return max(weights.extend * largest_input, weights.output * tokens)


def theorem_bound(bound: ServiceBound, largest_input: int, tokens: int) -> int:
    """The most that service of two clients backlogged together may differ, in weighted tokens.

    2 * |W| * (U + Q^u) for DLPM and D2LPM ([DLPM] Theorems 4.1, 5.1), and 2 * |W| * U_v for VTC,
    whose quantum is 0 ([VTC] Theorem 4.4); weights and |W| are the bound's. ``tokens`` as in
    ``dlpm_unit``.
    """
    unit = dlpm_unit if bound.quantum_tokens else vtc_unit
    overdraft = unit(largest_input, tokens, bound.weights)
    return 2 * bound.workers * (overdraft + bound.quantum_tokens)


def largest_input(requests: Requests) -> int:
    """L_input: the longest input of an admitted request in tokens, 0 if there is none."""
    admitted = requests.input_tokens[~np.isnan(requests.admitted_s)]
    return int(admitted.max(initial=0))


def largest_remaining_output(requests: Requests, log: Service, facts: Facts) -> int:
    """The most output tokens that a client's admitted requests on one worker still had to make.

    Taken just after every admission, from what the requests really produced in this run. Where
    memory is over-committed it can be more than M: then a client decodes more than the pool without
    a new admission. A retracted request counts as if it were still running.
    """
    largest = 0.0
    for worker in range(facts.workers):
        here = requests.take((requests.worker == worker) & ~np.isnan(requests.admitted_s))
        times, at = np.unique(here.admitted_s, return_inverse=True)
        promised = np.zeros((len(facts.clients), len(times)))
        np.add.at(promised, (here.client, at), here.output_tokens)
        rows = log.take(log.worker == worker)
        made = cumulative(
            rows, View.OUTPUT, times, len(facts.clients), facts.weights, with_ends=True
        )
        remaining = np.cumsum(promised, axis=1) - made
        largest = max(largest, float(remaining.max(initial=0.0)))
    return int(largest)
