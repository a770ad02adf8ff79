"""The latency samples of all clients, of one look at the tables for a thousand of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairbench.metrics.by_client import rows_of
from fairbench.metrics.latency import Sample, client_sample
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
    """The latency sample of each client."""
    window, clients = facts.window, range(len(facts.clients))
    arrived = (programs.arrival_s >= window.start_s) & (programs.arrival_s < window.end_s)
    if facts.latency != "ttft":
        return _of_programs(programs, arrived, facts)
    ids, first = np.unique(programs.program_id, return_index=True)
    if len(ids) < len(programs) or not len(ids):
        # If ids repeat, nobody knows whose a request is, and each gets the whole tables.
        return [client_sample(requests, programs, facts, window, client) for client in clients]
    place = np.minimum(np.searchsorted(ids, requests.program_id), len(ids) - 1)
    program = first[place]
    asked = (ids[place] == requests.program_id) & arrived[program]
    return _of_requests(requests, programs, asked, programs.client[program], arrived, facts)


def _of_programs(programs: Programs, arrived: Flags, facts: Facts) -> list[Sample]:
    """What the programs of the window took."""
    clients, arrival_s = len(facts.clients), programs.arrival_s

    def of_clients(status: int, latency_s: Floats) -> Iterator[Floats]:
        """What each client's programs of the window took that ended in such a way."""
        chosen = arrived & (programs.status == status)
        return _of_each(programs.client[chosen], latency_s[chosen], clients)

    known = of_clients(FINISHED, programs.finish_s - arrival_s)
    more_than = of_clients(UNFINISHED, facts.horizon_s - arrival_s)
    refused = np.bincount(
        programs.client[arrived & (programs.status == REFUSED)], minlength=clients
    )
    return list(map(Sample, known, more_than, refused.tolist()))


def _of_requests(
    requests: Requests, programs: Programs, asked: Flags, owner: Ints, arrived: Flags, facts: Facts
) -> list[Sample]:
    """``time_to_first_token`` of each client, the ``owner`` of requests, as far as ``asked``."""
    clients = len(facts.clients)
    answered = ~np.isnan(requests.first_token_s)
    known, refused = asked & answered, asked & ~answered & (requests.status == REFUSED)
    waiting = asked & ~answered & ~refused
    ttft_s = (requests.first_token_s - requests.arrival_s)[known]
    waits_s = facts.horizon_s - requests.arrival_s[waiting]
    cut_short = arrived & (programs.status == UNFINISHED)
    unmade = np.bincount(
        programs.client[cut_short],
        weights=np.maximum(0, programs.demand_requests - programs.requests)[cut_short],
        minlength=clients,
    )
    more_than = (
        np.concatenate([mine_s, np.zeros(int(more))]) if more else mine_s
        for mine_s, more in zip(
            _of_each(owner[waiting], waits_s, clients), unmade.tolist(), strict=True
        )
    )
    count = np.bincount(owner[refused], minlength=clients)
    known_s = _of_each(owner[known], ttft_s, clients)
    return list(map(Sample, known_s, more_than, count.tolist()))


def _of_each(client: Ints, values: Floats, clients: int) -> Iterator[Floats]:
    """The values of each client, in their order."""
    return (values[own] for own in rows_of(client, clients))
