"""The latencies of each client, computed for all clients at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from fairbench.metrics.arrays import in_order, spread
from fairbench.metrics.latency import Sample
from fairbench.metrics.records import (
    FINISHED,
    REFUSED,
    UNFINISHED,
    Facts,
    Flags,
    Floats,
    Ints,
    Programs,
    Requests,
)


def samples(requests: Requests, programs: Programs, facts: Facts) -> list[Sample]:
    """Return each client's latencies of the programs that arrived in the window of ``facts``."""
    window = facts.window
    arrived = (programs.arrival_s >= window.start_s) & (programs.arrival_s < window.end_s)
    if facts.latency == "ttft":
        return _first_tokens(requests, programs, arrived, facts)
    return _of_programs(programs, arrived, facts)


def _of_programs(programs: Programs, arrived: Flags, facts: Facts) -> list[Sample]:
    """Return finish minus arrival of each client's programs that have arrived."""
    clients, arrival_s = len(facts.clients), programs.arrival_s

    def of_clients(status: int, latency_s: Floats) -> Iterator[Floats]:
        """Yield, by client, the latencies of the window's programs with a status."""
        chosen = arrived & (programs.status == status)
        return _of_each(programs.client[chosen], latency_s[chosen], clients)

    known = of_clients(FINISHED, programs.finish_s - arrival_s)
    more_than = of_clients(UNFINISHED, facts.horizon_s - arrival_s)
    refused = np.bincount(
        programs.client[arrived & (programs.status == REFUSED)], minlength=clients
    )
    return list(map(Sample, known, more_than, refused.tolist()))


def _first_tokens(
    requests: Requests, programs: Programs, arrived: Flags, facts: Facts
) -> list[Sample]:
    """Return the times to first token (first token minus arrival) of programs that have arrived.

    Requests that an unfinished program had yet to make are censored at 0 s: a starved client makes
    fewer requests, and would otherwise be judged by the lucky ones.
    """
    clients = len(facts.clients)
    row, owner = _asked(requests, programs, arrived, clients)
    first_s, arrival_s = requests.first_token_s[row], requests.arrival_s[row]
    answered = ~np.isnan(first_s)
    refused = ~answered & (requests.status[row] == REFUSED)
    waiting = ~answered & ~refused
    cut_short = arrived & (programs.status == UNFINISHED)
    unmade = np.bincount(
        programs.client[cut_short],
        weights=np.maximum(0, programs.demand_requests - programs.requests)[cut_short],
        minlength=clients,
    )
    more_than = (
        np.concatenate([mine_s, np.zeros(int(more))]) if more else mine_s
        for mine_s, more in zip(
            _of_each(owner[waiting], (facts.horizon_s - arrival_s)[waiting], clients),
            unmade.tolist(),
            strict=True,
        )
    )
    known = _of_each(owner[answered], (first_s - arrival_s)[answered], clients)
    count = np.bincount(owner[refused], minlength=clients)
    return list(map(Sample, known, more_than, count.tolist()))


def _asked(
    requests: Requests, programs: Programs, arrived: Flags, clients: int
) -> tuple[Ints, Ints]:
    """Return the requests of programs that have arrived, and their clients.

    If clients have programs with equal ids, the owner is unknown, and a request counts for each.
    """
    order = np.argsort(programs.program_id, kind="stable")
    ids = programs.program_id[order]
    low = np.searchsorted(ids, requests.program_id, "left")
    high = np.searchsorted(ids, requests.program_id, "right")
    row, place = spread(low, high - low)
    program = order[place]
    row, owner = row[arrived[program]], programs.client[program[arrived[program]]]
    if len(ids) > 1 and (ids[1:] == ids[:-1]).any():
        row, owner = np.divmod(np.unique(row * clients + owner), clients)
    return row, owner


def _of_each(client: Ints, values: Floats, clients: int) -> Iterator[Floats]:
    """Yield the values of each client, in order."""
    order, bounds = in_order(client, clients)
    mine = values[order]
    return (mine[low:high] for low, high in pairwise(bounds.tolist()))
