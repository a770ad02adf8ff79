"""Functions that measure service deficits, new clients' waits and idle workers in stored runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import REFUSED, Flags, Floats, Requests, Window
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting import Backlog, Intervals, Waits, merged, merged_each, waits
from fairbench.results.run_facts import read_tables, stored_facts
from fairbench.results.store import StoredRun
from fairbench_studies.kit.leads import ServiceHistory
from fairbench_studies.kit.seeds import derived

NAN = float("nan")


def shortfall_everywhere(run: StoredRun) -> float:
    """Return the largest service deficit of a client that has waiting requests at every worker.

    A client's deficit is how much more service another client has received (Theorem 5.2). The
    result is NaN if no client ever had waiting requests at every worker.
    """
    return float(derived(run, "shortfall everywhere", lambda: _shortfall(run)))


def _shortfall(run: StoredRun) -> float:
    tables, horizon_s = read_tables(run), run.summary["duration"]
    backlog = Backlog.of_requests(tables.requests, stored_facts(run, Window(0.0, horizon_s)))
    return lead_over(backlog, tables.service, len(tables.clients))


def lead_over(backlog: Backlog, service: ServiceRows, clients: int) -> float:
    """Return the largest rise of a client's lead over a client that waits at every worker.

    Args:
        backlog: The intervals in which a client has waiting requests at every worker.
        service: The service log of all workers.
        clients: The number of clients in the run.
    """
    if not len(backlog.client):
        return NAN
    history = ServiceHistory.of(service, clients)
    largest = 0.0
    for client, start_s, end_s in zip(backlog.client, backlog.start, backlog.end, strict=True):
        served = history.between(float(start_s), float(end_s))
        lead = served - served[:, [client]]
        rise = lead - np.minimum.accumulate(lead, axis=0)
        largest = max(largest, float(rise.max(initial=0.0)))
    return largest


def newcomer_wait(run: StoredRun) -> float:
    """Return the most service that other clients received while a newcomer's first request waited.

    The service is summed over the other clients and all workers (Theorems A.2 and A.4). The result
    is NaN if the run has no newcomer.
    """
    return float(derived(run, "newcomer wait", lambda: _newcomer_wait(run)))


def _newcomer_wait(run: StoredRun) -> float:
    tables = read_tables(run)
    return largest_wait(
        tables.requests, tables.service, len(tables.clients), run.summary["duration"]
    )


def largest_wait(requests: Requests, service: ServiceRows, clients: int, horizon_s: float) -> float:
    """Return the most service that other clients received while a newcomer's first request waited.

    A newcomer is a client that had no waiting or running request. If a newcomer sends several
    requests at once, its wait ends when the first of these requests is admitted.

    Args:
        requests: The requests of the run.
        service: The service log of all workers.
        clients: The number of clients in the run.
        horizon_s: The end of the run in seconds; requests that were never admitted wait until then.
    """
    first = _after_idle_times(requests, horizon_s)
    waiting = first.admitted_s > first.arrival_s
    if not len(first.client):
        return NAN
    history = ServiceHistory.of(service, clients)
    largest = 0.0
    for client, start_s, end_s in zip(*(column[waiting] for column in first), strict=True):
        served = history.between(float(start_s), float(end_s))
        gained = served[-1] - served[0]
        largest = max(largest, float(gained.sum() - gained[client]))
    return largest


class _Firsts(NamedTuple):
    """The first requests of clients after idle times: arrays with an entry for each request."""

    client: np.ndarray
    arrival_s: Floats
    admitted_s: Floats


def _after_idle_times(requests: Requests, horizon_s: float) -> _Firsts:
    kept = requests.status != REFUSED
    client, arrival_s = requests.client[kept], requests.arrival_s[kept]
    admitted_s, finish_s = (
        np.where(np.isnan(column[kept]), horizon_s, column[kept])
        for column in (requests.admitted_s, requests.finish_s)
    )
    order = np.lexsort((admitted_s, arrival_s, client))
    busy_until_s: dict[int, float] = {}
    rows = []
    for row in order.tolist():
        before_s = busy_until_s.get(int(client[row]), -np.inf)
        if arrival_s[row] > before_s:
            rows.append(row)
        busy_until_s[int(client[row])] = max(before_s, float(finish_s[row]))
    return _Firsts(client[rows], arrival_s[rows], admitted_s[rows])


class IdleShares(NamedTuple):
    """Fractions of worker time in which a worker computes nothing while a request waits.

    ``own`` counts only requests that wait at the idle worker, and ``another`` counts only requests
    that wait at another worker.
    """

    own: float
    another: float


def idle_while_waiting(run: StoredRun) -> IdleShares:
    """Return the fractions of time in which workers of a run idle while requests wait."""
    return IdleShares(*derived(run, "idle while waiting", lambda: _idle_while_waiting(run)))


def _idle_while_waiting(run: StoredRun) -> IdleShares:
    tables, end_s = read_tables(run), run.summary["duration"]
    return idle_shares(tables.requests, tables.service, run.summary["dp"], end_s)


def idle_shares(requests: Requests, service: ServiceRows, workers: int, end_s: float) -> IdleShares:
    """Return the fractions of worker time in which a worker is idle while a request waits.

    Args:
        requests: The requests of the run.
        service: The service log of all workers.
        workers: The number of workers.
        end_s: The end of the run in seconds.
    """
    rows = service.between(0, len(service))
    queued = waits(requests, end_s)
    at, busy = merged_each(rows.worker, rows.start_s, rows.end_s)
    own_s = another_s = 0.0
    for worker in range(workers):
        computing = Intervals(busy.start[at == worker], busy.end[at == worker])
        here = queued.worker == worker
        own_s += _outside(_queued(queued, here), computing)
        another_s += _outside(_queued(queued, ~here), computing)
    return IdleShares(own_s / (workers * end_s), another_s / (workers * end_s))


def _queued(queued: Waits, rows: Flags) -> Intervals:
    return merged(queued.start[rows], queued.end[rows])


def _outside(waiting: Intervals, computing: Intervals) -> float:
    """Return the seconds that lie inside the intervals ``waiting`` and outside ``computing``."""
    inside_s = sum(
        float((np.minimum(waiting.end, end) - np.maximum(waiting.start, start)).clip(0).sum())
        for start, end in zip(*computing, strict=True)
    )
    return float((waiting.end - waiting.start).sum()) - inside_s
