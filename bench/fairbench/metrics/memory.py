"""Metrics of KV memory, for runs that record it: cached tokens and evictions by client."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.catalogue import CLIENTS, Notes, Part
from fairbench.metrics.records import Facts, Floats, Requests, Window
from fairbench.metrics.tables import NOBODY, Memory, Tables
from fairbench.metrics.totals import cache_hit_rate, ratio


def held_token_s(memory: Memory, clients: int, window: Window) -> Floats:
    """Return the token-seconds that each client held in the window, shape (clients,).

    A token held by k clients counts 1/k for each.
    """
    left_s = np.clip(window.end_s - np.maximum(memory.at_s, window.start_s), 0, None)
    weights = memory.change / memory.holders * left_s
    held: Floats = np.bincount(memory.client, weights=weights, minlength=clients).astype(float)
    return held


def evicted_tokens(memory: Memory, clients: int, window: Window) -> Floats:
    """Return the tokens that clients lost to evictions in the window; shape (clients, clients).

    Row i and column j are the tokens that client i lost to requests of client j. A token that k
    clients held counts 1/k for each that lost it.
    """
    rows = window.holds(memory.at_s) & (memory.by != NOBODY) & (memory.change < 0)
    cells = memory.client[rows] * clients + memory.by[rows]
    weights = -memory.change[rows] / memory.holders[rows]
    lost: Floats = np.bincount(cells, weights=weights, minlength=clients**2).astype(float)
    return lost.reshape(clients, clients)


def hit_rates(requests: Requests, clients: int) -> list[float]:
    """Return each client's cache hit rate; NaN for a client without an admitted request."""
    return [cache_hit_rate(requests, requests.client == client) for client in range(clients)]


def memory_summary(tables: Tables, memory: Memory, facts: Facts, notes: Notes) -> Part:
    """Return the metrics of memory. Precondition: a row's client is an index into ``facts``."""
    window = Window(facts.window.start_s, min(facts.window.end_s, facts.horizon_s))
    names = [client.name for client in facts.clients]
    held = held_token_s(memory, len(names), window)
    lost = evicted_tokens(memory, len(names), window)
    hits = hit_rates(tables.requests, len(names))
    entitled = facts.client_weights / facts.client_weights.sum()
    clients = []
    for at, name in enumerate(names):
        prefix, alone = f"{CLIENTS}{name}.", facts.hit_alone.get(name, float("nan"))
        values = {
            "residency_tokens": ratio(float(held[at]), window.length_s),
            "residency_ratio": ratio(float(held[at]), float(held.sum() * entitled[at])),
            "evicted_tokens": float(lost[at].sum()),
            "evicted_by_others_tokens": float(lost[at].sum() - lost[at, at]),
            "evicted_of_others_tokens": float(lost[:, at].sum() - lost[at, at]),
            "cache_hit_rate_alone": alone,
            "cache_sharing_incentive": ratio(hits[at], alone),
        }
        clients.append(notes.values(values, prefix))
    matrix = [
        {"client": names[of], "by": names[by], "tokens": float(lost[of, by])}
        for of, by in np.argwhere(lost > 0).tolist()
    ]
    return Part({"evictions": matrix}, clients)
