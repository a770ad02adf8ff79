"""The fraction of a run's iterations outside the range of its timing profile's fit."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.records import Facts, FitLimits, Floats, Service
from fairbench.metrics.tables import Tables

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
