"""The largest values of quantities that [VTC] Theorems 4.9, 4.11 and 4.13 bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from fairbench.core import OUTPUT_PRICE
from fairbench.metrics.records import Floats, Ints, Requests
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting import merged, waits
from fairbench.results.run_facts import read_tables
from fairbench.results.store import StoredRun
from fairbench_studies.kit.leads import ServiceHistory, largest_lead

THEOREM = "VTC Theorem 4.4"  # theorem that bounds the service gap of a run under VTC


class Extremes(NamedTuple):
    """A run's largest values of the quantities that [VTC] bounds, in weighted tokens.

    ``unit`` is U in [VTC], and ``clients`` is the number of clients. ``lead`` is the largest lead
    in service over a client with waiting requests. ``ahead`` is the most service that other clients
    receive while a client's only request waits. ``unasked`` is the amount by which an equal share
    exceeds the service that a waiting client has requested.
    """

    unit: float
    clients: int
    lead: float
    ahead: float
    unasked: float


def extremes_of(run: StoredRun) -> Extremes | None:
    """Return a run's ``Extremes``, or None if clients' weights differ or the bound is not VTC's."""
    summary = run.summary
    bound, weights = summary["service_gap_bound"], {_weight(row) for row in summary["clients"]}
    if summary.get("bound_source") != THEOREM or len(weights) > 1:
        return None
    tables = read_tables(run)
    clients, horizon_s = len(tables.clients), summary["duration"]
    return Extremes(
        bound / 2,
        clients,
        largest_lead(tables.requests, tables.service, clients, horizon_s),
        largest_ahead(tables.requests, tables.service, clients),
        largest_unasked(tables.requests, tables.service, clients, horizon_s),
    )


def _weight(row: Mapping[str, Any]) -> float:
    return float(row.get("weight", 1.0))


def largest_ahead(requests: Requests, service: ServiceRows, clients: int) -> float:
    """Return the most service that all other clients get while a client's only request waits.

    [VTC] Theorem 4.11 bounds the service of the other clients. The theorem applies if the waiting
    client had no other request when its request arrived.
    """
    history = ServiceHistory.of(service, clients)
    largest = 0.0
    for client, row in _alone(requests, clients):
        served = history.between(float(requests.arrival_s[row]), float(requests.admitted_s[row]))
        given = np.delete(served[-1] - served[0], client)
        largest = max(largest, float(given.sum()))
    return largest


def _alone(requests: Requests, clients: int) -> Iterator[tuple[int, int]]:
    """Yield (client, row) of requests that waited though their client had no unfinished request."""
    for client in range(clients):
        mine = np.flatnonzero(requests.client == client)
        mine = mine[np.argsort(requests.arrival_s[mine], kind="stable")]
        ends_s = np.where(np.isnan(requests.finish_s[mine]), np.inf, requests.finish_s[mine])
        before_s = np.concatenate([[-np.inf], np.maximum.accumulate(ends_s)[:-1]])
        free = before_s <= requests.arrival_s[mine]
        for row in mine[free & (requests.admitted_s[mine] > requests.arrival_s[mine])]:
            yield client, int(row)


def largest_unasked(
    requests: Requests, service: ServiceRows, clients: int, horizon_s: float
) -> float:
    """Return the largest excess of equal service over a waiting client's requested tokens.

    [VTC] Theorem 4.13 bounds the returned value. Equal service is the clients' service since the
    waiting client began to wait, divided by the number of clients that sent requests since then.
    """
    history, queued = ServiceHistory.of(service, clients), waits(requests, horizon_s)
    order = np.argsort(requests.arrival_s, kind="stable")
    arrivals = _Arrivals(
        requests.client[order],
        requests.arrival_s[order],
        np.asarray(requests.input_tokens + OUTPUT_PRICE * requests.output_tokens, dtype=float)[
            order
        ],
    )
    largest = 0.0
    for client in range(clients):
        mine = queued.client == client
        for start_s, end_s in zip(*merged(queued.start[mine], queued.end[mine]), strict=True):
            first, after = history.span(float(start_s), float(end_s))
            total = history.served[first - 1 : after].sum(axis=1)
            asked, asking = arrivals.since(float(start_s), history.times[first:after], client)
            excess = (total[1:] - total[0]) / np.maximum(asking, 1) - asked
            largest = max(largest, float(excess.max(initial=0.0)))
    return largest


class _Arrivals(NamedTuple):
    """Requests in order of arrival, each with client, time in seconds, and weighted tokens."""

    client: Ints
    at_s: Floats
    tokens: Floats

    def since(self, start_s: float, times_s: Floats, client: int) -> tuple[Floats, Ints]:
        """Return the tokens that the client requested, and the number of clients, until each time.

        Requests before ``start_s`` are not counted.
        """
        first = int(np.searchsorted(self.at_s, start_s))
        until = np.searchsorted(self.at_s, times_s, "right") - first
        owner, tokens = self.client[first:], self.tokens[first:]
        asked = np.concatenate([[0.0], np.cumsum(np.where(owner == client, tokens, 0.0))])
        new = np.zeros(len(owner) + 1, dtype=np.int64)
        new[np.unique(owner, return_index=True)[1] + 1] = 1
        return asked[until], np.cumsum(new)[until]
