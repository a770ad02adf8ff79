"""Latencies, cache hits, KV memory, and use of prefill and decode workers over a whole run."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import ratio
from fairbench.metrics.reasons import NAN
from fairbench.metrics.records import (
    FINISHED,
    Facts,
    Flags,
    Floats,
    Ints,
    Programs,
    Requests,
    Window,
)
from fairbench.metrics.tables import NOBODY, Memory, Tables


def cache_hit_rate(requests: Requests, chosen: Flags) -> float:
    """Return the cached fraction of the ``chosen`` requests' input; NaN if none was admitted."""
    admitted = chosen & ~np.isnan(requests.admitted_s)
    cached = float(requests.cached_tokens[admitted].sum())
    return ratio(cached, cached + float(requests.extend_tokens[admitted].sum()))


def hit_rates(requests: Requests, clients: int) -> list[float]:
    """Return each client's cache hit rate, or NaN for a client without an admitted request."""
    admitted = ~np.isnan(requests.admitted_s)
    client = requests.client[admitted]
    cached, extended = (  # float sums of whole numbers are exact
        np.bincount(client, weights=tokens[admitted], minlength=clients).tolist()
        for tokens in (requests.cached_tokens, requests.extend_tokens)
    )
    return [ratio(hit, hit + missed) for hit, missed in zip(cached, extended, strict=True)]


def time_to_finish(programs: Programs, window: Window, percent: int) -> float:
    """Return the time in seconds at which ``percent`` of the programs had finished.

    Only programs that arrived before the end of the window are included, because they arrive under
    every scheduler. The result is NaN if too few programs finished, or if no program arrived.
    """
    fixed = programs.take(programs.arrival_s < window.end_s)
    finishes = np.sort(fixed.finish_s[fixed.status == FINISHED])
    needed = ceil(len(fixed) * percent / 100)
    return float(finishes[needed - 1]) if 0 < needed <= len(finishes) else NAN


class RequestLatencies(NamedTuple):
    """Latencies of completed requests in ms, and their total decode time in seconds.

    ``ms`` holds ``ttft`` and ``e2el`` of every completed request. Requests with two tokens or more
    also have ``tpot``, the mean gap between tokens. ``decode_s`` is the time from the first to the
    last token, summed over requests. ``gaps`` is the number of token gaps in ``decode_s``.
    """

    ms: dict[str, Floats]
    decode_s: float
    gaps: float


def request_latencies(requests: Requests) -> RequestLatencies:
    """Return the latencies of the completed requests of a whole run."""
    done = requests.status == FINISHED
    arrival, first, finish = (
        times[done] for times in (requests.arrival_s, requests.first_token_s, requests.finish_s)
    )
    gaps = requests.output_tokens[done] - 1
    decode = (finish - first)[gaps > 0]
    gaps = gaps[gaps > 0]
    seconds = {"ttft": first - arrival, "tpot": decode / gaps, "e2el": finish - arrival}
    ms = {name: 1000 * each for name, each in seconds.items()}
    return RequestLatencies(ms, float(decode.sum()), float(gaps.sum()))


RANKS = {"median": 50, "max": 100}


def statistic_of(name: str, values: Floats | None) -> float:
    """Return the mean, std, median, max or a percentile such as p99; NaN if there are no values."""
    if values is None or not len(values):
        return NAN
    if name in ("mean", "std"):
        return float(values.mean() if name == "mean" else values.std())
    return float(np.percentile(values, RANKS.get(name) or int(name[1:])))


def held_token_s(memory: Memory, clients: int, window: Window) -> Floats:
    """Return the KV token-seconds that each client held in the window, shape (n_clients,).

    A token that k clients hold counts as 1/k token for each client.
    """
    left_s = np.clip(window.end_s - np.maximum(memory.at_s, window.start_s), 0, None)
    weights = memory.change / memory.holders * left_s
    held: Floats = np.bincount(memory.client, weights=weights, minlength=clients).astype(float)
    return held


def evicted_tokens(memory: Memory, clients: int, window: Window) -> Floats:
    """Return how many cached tokens of each client were evicted for each client's requests.

    Row i and column j of the array hold the tokens that client i lost to client j in ``window``. A
    token that k clients held counts as 1/k token for each client.
    """
    rows = window.holds(memory.at_s) & (memory.by != NOBODY) & (memory.change < 0)
    cells = memory.client[rows] * clients + memory.by[rows]
    weights = -memory.change[rows] / memory.holders[rows]
    lost: Floats = np.bincount(cells, weights=weights, minlength=clients**2).astype(float)
    return lost.reshape(clients, clients)


class TwoSides(NamedTuple):
    """Busy time and number of prefill workers and of decode workers, and times of KV transfers.

    ``busy_s`` (of the whole run) and ``workers`` have one element for prefill and one for decode.
    ``transfer_s`` holds the duration of each KV transfer in seconds.
    """

    busy_s: Floats
    workers: Ints
    transfer_s: Floats


def sides_of(tables: Tables, facts: Facts) -> TwoSides | None:
    """Return the busy times of prefill and decode workers; None for colocated replicas."""
    prefills, requests = facts.prefill_workers, tables.requests
    if prefills is None or requests.sent_s is None or requests.received_s is None:
        return None
    busy_s = np.zeros(2)
    for part in tables.service.parts():
        if part.gpu_s is not None:
            side = (part.worker >= prefills).astype(np.int64)
            busy_s += np.bincount(side, weights=part.gpu_s, minlength=2)
    transfer_s = requests.received_s - requests.sent_s
    workers = np.array([prefills, facts.workers - prefills])
    return TwoSides(busy_s, workers, transfer_s[~np.isnan(transfer_s)])
