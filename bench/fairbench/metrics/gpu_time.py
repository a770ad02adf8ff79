"""GPU time: how long the workers were busy, for whom, and outside the fit of the timing profile."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from fairbench.metrics.arrays import in_order
from fairbench.metrics.records import Facts, FitLimits, Floats, Service
from fairbench.metrics.tables import Tables


def gpu_time(tables: Tables, facts: Facts) -> float:
    """Return the seconds in which workers computed, summed over workers and the run.

    The result is NaN if the composition of iterations is unknown: on real servers, and in older
    records.
    """
    times = [part.gpu_s for part in tables.service.parts()]
    return sum(float("nan") if one is None else float(one.sum()) for one in times)


def gpu_time_of_clients(tables: Tables, facts: Facts) -> Floats:
    """Return each client's part of the GPU time; the parts add up to the whole."""
    clients = len(facts.clients)
    total = np.zeros(clients)
    for part in tables.service.parts():
        if (gpu_s := part.gpu_s) is None:
            return np.full(clients, np.nan)
        order, bounds = in_order(part.client, clients)
        mine_s = gpu_s[order]
        total += [mine_s[low:high].sum() for low, high in pairwise(bounds.tolist())]
    return total


WARN_ABOVE = 0.1


def outside_fit_ratio(tables: Tables, facts: Facts) -> float:
    """Return the busy time in decode steps with larger batches or contexts than the fit.

    NaN if nothing was run, or if nobody knows what the profile was fitted to. Of a stretch of steps
    whose context grows over the limit the steps beyond it count.
    """
    if facts.fit is None:
        return float("nan")
    outside_s = total_s = 0.0
    for part in tables.service.parts():
        log = _stretches(part)
        busy_s = log.end_s - log.start_s
        outside_s += float((_outside(log, facts.fit) * busy_s).sum())
        total_s += float(busy_s.sum())
    return outside_s / total_s if total_s else float("nan")


def _outside(log: Service, fit: FitLimits) -> Floats:
    """Return the fraction of each stretch that lies outside."""
    limit = fit.context_tokens or np.inf
    within = np.floor((limit - log.context_tokens) / np.maximum(log.batch_size, 1)) + 1
    beyond = 1 - np.clip(within, 0, log.steps) / log.steps
    outside: Floats = np.where(log.batch_size > fit.decode_batch, 1.0, beyond)
    outside[log.context_tokens == 0] = 0.0  # prefill
    return outside


def _stretches(log: Service) -> Service:
    """Return one row per stretch of a worker's batch, for any number of clients in it."""
    order = np.lexsort((log.start_s, log.worker))
    worker, start_s = log.worker[order], log.start_s[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (worker[1:] != worker[:-1]) | (start_s[1:] != start_s[:-1])
    return log.take(order[new])
