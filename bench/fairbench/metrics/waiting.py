"""Backlogs: when clients had requests waiting, as the fairness theorems require."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import spread
from fairbench.metrics.records import REFUSED, Facts, Flags, Floats, Ints, Requests, Window


class Intervals(NamedTuple):
    """Disjoint intervals ``[start, end)`` in ascending order, in seconds."""

    start: Floats
    end: Floats


EVERYWHERE = -1  # before the cluster: a request there waits for any worker


class Waits(NamedTuple):
    """A row per wait of a request in a worker's queue, or in a gateway (``EVERYWHERE``)."""

    worker: Ints
    client: Ints
    start: Floats
    end: Floats

    def of(self, rows: Ints) -> Waits:
        """Return some of the rows."""
        return Waits(self.worker[rows], self.client[rows], self.start[rows], self.end[rows])


def waits(requests: Requests, horizon_s: float) -> Waits:
    """Return every wait: arrival to admission, and last retraction to readmission.

    A computed prompt waits for its decode worker's memory, too, if that was not reserved before.

    A request that was not (re)admitted waits until the horizon; a refused request never waits.
    While queued at a gateway, a request waits ``EVERYWHERE``, and also at the worker to which it
    goes later.
    """
    queued = (requests.status != REFUSED) & (requests.worker >= 0)
    again = queued & ~np.isnan(requests.retracted_s)
    runs_at = requests.worker if requests.decode_worker is None else requests.decode_worker
    parts = [
        (queued, requests.worker, requests.arrival_s, requests.admitted_s),
        (again, runs_at, requests.retracted_s, requests.readmitted_s),
    ]
    if requests.computed_s is not None and requests.reserved_s is not None:
        unread = ~(requests.reserved_s <= requests.computed_s) & ~np.isnan(requests.computed_s)
        parts.append((queued & unread, runs_at, requests.computed_s, requests.reserved_s))
    if requests.routed_s is not None:
        everywhere = np.full(len(requests), EVERYWHERE)
        held = requests.status != REFUSED
        parts.append((held, everywhere, requests.arrival_s, requests.routed_s))
    worker, start, end = (
        np.concatenate([part[column][part[0]] for part in parts]) for column in (1, 2, 3)
    )
    client = np.concatenate([requests.client[rows] for rows, *_ in parts])
    end = np.where(np.isnan(end), horizon_s, end)
    real = start < end
    return Waits(worker[real], client[real], start[real], end[real])


def merged(start: Floats, end: Floats) -> Intervals:
    """Return the union of intervals, joining two only if they strictly overlap.

    If a wait ends when the next begins, the queue was empty during an admission pass. The client
    was then not backlogged at that instant, although the theorems require every instant.
    """
    return merged_each(np.zeros(len(start), dtype=np.int64), start, end)[1]


def merged_each(queue: Ints, start: Floats, end: Floats) -> tuple[Ints, Intervals]:
    """Return the unions of intervals per queue, with their queues (numbers from 0).

    Arguments have the shape (n_intervals,), results (n_unions,), ordered by queue and start.
    """
    if len(start) == 0:
        return queue, Intervals(start, end)
    order = np.lexsort((start, queue))
    queue, start, end = queue[order], start[order], end[order]
    # The latest end so far, as its rank among all ends, so that it restarts with each queue.
    ends = np.sort(end)
    before = queue * len(ends)
    latest = np.maximum.accumulate(before + np.searchsorted(ends, end)) - before
    reach = ends[latest]
    first = np.concatenate([[True], (start[1:] >= reach[:-1]) | (queue[1:] != queue[:-1])])
    last = np.concatenate([first[1:], [True]])
    return queue[first], Intervals(start[first], reach[last])


def unqueued_share(requests: Requests, horizon_s: float, window: Window) -> float:
    """Return the fraction of the window without a waiting request; NaN if it is empty."""
    if not window.length_s:
        return float("nan")
    table = waits(requests, horizon_s)
    start, end = np.maximum(table.start, window.start_s), np.minimum(table.end, window.end_s)
    inside = start < end
    queued = merged(start[inside], end[inside])
    queued_s = float((queued.end - queued.start).sum())
    return max(0.0, 1 - queued_s / window.length_s)


class Backlog(NamedTuple):
    """A table of backlogged intervals, disjoint for a client, sorted by client and then by time."""

    client: Ints
    start: Floats
    end: Floats

    @classmethod
    def of(cls, requests: Requests, facts: Facts) -> Backlog:
        """Return when each client had a request waiting, at every worker or at any worker.

        The condition is on every worker because the proof of [DLPM] Theorem 5.1 assumes it; it does
        not follow from anything else. Workers that compute no prompts have no queue.
        """
        table = waits(requests, facts.horizon_s)
        everywhere = table.worker == EVERYWHERE
        common = cls._merged(table, everywhere | (table.worker == 0))
        for worker in range(1, facts.prefill_workers or facts.workers):
            backlogged = np.zeros(len(facts.clients), dtype=np.bool_)
            backlogged[common.client] = True
            here = everywhere | (table.worker == worker)
            common = common.together(cls._merged(table, here & backlogged[table.client]))
        return common

    @classmethod
    def _merged(cls, table: Waits, here: Flags) -> Backlog:
        client, queued = merged_each(table.client[here], table.start[here], table.end[here])
        return cls(client, queued.start, queued.end)

    @property
    def shared(self) -> bool:
        """Return whether any two clients were backlogged together."""
        order = np.argsort(self.start, kind="stable")
        reach = np.maximum.accumulate(self.end[order])
        return bool(np.any(self.start[order][1:] < reach[:-1]))

    def depth(self, at_s: Floats) -> Ints:
        """Return how many clients were backlogged at each time, including interval ends."""
        begun = np.searchsorted(np.sort(self.start), at_s, "right")
        over = np.searchsorted(np.sort(self.end), at_s, "left")
        return begun - over

    def together(self, others: Backlog) -> Backlog:
        """Return when each client was backlogged in both tables."""
        every = np.arange(len(others.client))
        other, own = Overlaps(self).found(others, every, others.client)
        return Backlog(
            self.client[own],
            np.maximum(self.start[own], others.start[other]),
            np.minimum(self.end[own], others.end[other]),
        )


class Overlaps:
    """A search for the rows of a table that overlap in time with rows of another table."""

    def __init__(self, table: Backlog) -> None:
        # Times are replaced by their ranks, so that client and time fit into one number.
        self._times = np.unique(np.concatenate([table.start, table.end]))
        self._starts = self._keys(table.client, np.searchsorted(self._times, table.start))
        self._ends = self._keys(table.client, np.searchsorted(self._times, table.end))

    def found(self, others: Backlog, row: Ints, client: Ints) -> tuple[Ints, Ints]:
        """Return, for each row of the other table, the rows of ``client`` here that overlap.

        The result is pairs of an index into ``row`` and a row here, ascending.
        """
        begun = np.searchsorted(self._times, others.start, "right")
        over = np.searchsorted(self._times, others.end, "left")
        # From the first row that ends after the other starts, to the first row that starts when it
        # ends.
        low = np.searchsorted(self._ends, self._keys(client, begun[row]))
        high = np.searchsorted(self._starts, self._keys(client, over[row]))
        return spread(low, np.maximum(0, high - low))

    def _keys(self, client: Ints, rank: Ints) -> Ints:
        keys: Ints = client * (len(self._times) + 1) + rank
        return keys
