"""Events by instant, from which the theorems' quantities are measured.

The engine writes a trace, not the scheduler, so that service W never comes from a counter. A client
is backlogged while every worker's queue holds one of its requests ([gaps] B6).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, permutations

import numpy as np

Counts = Mapping[str, int]
NONE: Counts = {}


class Trace:
    """A trace with one column per instant. Numbers are those just after the instant.

    With ``everywhere=False``, a client is backlogged if a request waits at any worker.
    """

    def __init__(self, clients: str, workers: int = 1, *, everywhere: bool = True) -> None:
        self.clients = list(clients)
        self._of_workers = min if everywhere else max
        self._waiting = [dict.fromkeys(clients, 0) for _ in range(workers)]
        self._under_way = dict.fromkeys(clients, 0)  # requests that wait or run
        self._service = dict.fromkeys(clients, 0)
        self._asked = dict.fromkeys(clients, 0)
        self._rows: list[list[list[int]]] = []

    def add(
        self,
        worker: int = 0,
        *,
        arrived: Counts = NONE,
        admitted: Counts = NONE,
        finished: Counts = NONE,
        service: Counts = NONE,
        asked: Counts = NONE,
    ) -> None:
        """Append an instant with each client's arrivals, admissions and service."""
        for client in self.clients:
            self._waiting[worker][client] += arrived.get(client, 0) - admitted.get(client, 0)
            self._under_way[client] += arrived.get(client, 0) - finished.get(client, 0)
            self._service[client] += service.get(client, 0)
            self._asked[client] += asked.get(client, 0)
        backlogged = [
            self._of_workers(queue[client] for queue in self._waiting) > 0
            for client in self.clients
        ]
        totals = (self._service, self._asked, self._under_way)
        self._rows.append([backlogged, *([t[c] for c in self.clients] for t in totals)])

    def rows(self) -> np.ndarray:
        """Return an array; axes: backlogged / service / asked / in flight, client, instant."""
        return np.array(self._rows, dtype=np.int64).transpose(1, 2, 0)

    def service_of(self, client: str) -> int:
        return self._service[client]


def backlogged_share(trace: Trace) -> float:
    """Return the share of instants at which every client is backlogged."""
    backlogged, _, _, _ = trace.rows()
    return float(backlogged.all(axis=0).mean())


def runs(mask: np.ndarray) -> Iterator[slice]:
    """Yield the stretches in which ``mask`` is true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        yield slice(first, end)


def max_gap(trace: Trace) -> int:
    """Return the largest |W_f - W_g| while both clients are backlogged ([VTC] Theorem 4.4)."""
    backlogged, service, _, _ = trace.rows()
    worst = 0
    for f, g in permutations(range(len(trace.clients)), 2):
        ahead = service[f] - service[g]
        for run in runs(backlogged[f] & backlogged[g]):
            worst = max(worst, int(np.ptp(ahead[run])))
    return worst


def weighted_gaps(trace: Trace, weights: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return the largest difference of weighted service, by pair of clients."""
    backlogged, service, _, _ = trace.rows()
    gaps = {}
    for f, g in combinations(range(len(trace.clients)), 2):
        first, second = trace.clients[f], trace.clients[g]
        ahead = service[f] / weights[first] - service[g] / weights[second]
        ranges = [float(np.ptp(ahead[run])) for run in runs(backlogged[f] & backlogged[g])]
        gaps[first, second] = max(ranges, default=0.0)
    return gaps


def max_lag(trace: Trace) -> int:
    """Return the largest W_g - W_f over intervals in which f is backlogged ([VTC] Theorem 4.9)."""
    backlogged, service, _, _ = trace.rows()
    worst = 0
    for f, g in permutations(range(len(trace.clients)), 2):
        behind = service[g] - service[f]
        for run in runs(backlogged[f]):
            rise = behind[run] - np.minimum.accumulate(behind[run])
            worst = max(worst, int(rise.max()))
    return worst


def max_wait(trace: Trace, client: str) -> int:
    """Return the most service of others while an idle client's request waited ([VTC] Theorem 4.11).

    Divided by the server's lowest capacity, this is the theorem's time.
    """
    backlogged, service, _, under_way = trace.rows()
    me, total = trace.clients.index(client), service.sum(axis=0)
    worst = 0
    for run in runs(backlogged[me]):
        idle_before = run.start == 0 or under_way[me, run.start - 1] == 0
        if idle_before:
            own = service[me, run]
            waiting = np.flatnonzero(own == own[0])[-1]  # until the client's first admission
            worst = max(worst, int(total[run][waiting] - total[run.start]))
    return worst


def max_underserved(trace: Trace, client: str) -> float:
    """Return the max of T/n minus a client's demand over its backlogs ([VTC] Theorem 4.13).

    The theorem's proof shows that this never exceeds 5U from the onset of a backlog. The condition
    as printed, on every suffix of the interval, fails for the last suffixes (T/n - 5U < 0). n
    counts the clients that could be served.
    """
    backlogged, service, asked, under_way = trace.rows()
    me, total = trace.clients.index(client), service.sum(axis=0)
    worst = 0.0
    for run in runs(backlogged[me]):
        before = max(run.start - 1, 0)
        present = np.maximum.accumulate(under_way[:, run] > 0, axis=1).sum(axis=0)
        requested = asked[me, run] - asked[me, before]
        worst = max(worst, float(((total[run] - total[before]) / present - requested).max()))
    return worst
