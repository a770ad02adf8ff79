"""The periods (backlogs) in which a client had requests waiting, as fairness theorems require."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import spread
from fairbench.metrics.records import REFUSED, Facts, Flags, Floats, Ints, Requests, Window


class Intervals(NamedTuple):
    """Disjoint time intervals ``[start, end)`` in ascending order, in seconds."""

    start: Floats
    end: Floats


EVERYWHERE = -1  # The worker number of requests that wait in a gateway for any worker


class Waits(NamedTuple):
    """The waits of requests in the queue of a worker or of a gateway, one per row, in seconds.

    The worker number of a wait in a gateway is ``EVERYWHERE``.
    """

    worker: Ints
    client: Ints
    start: Floats
    end: Floats


def waits(requests: Requests, horizon_s: float) -> Waits:
    """Return requests' waits: from arrival to admission, and from retraction to readmission.

    With disaggregated workers, a computed prompt also waits until the decode worker's memory is
    reserved. A request that was not admitted or readmitted waits until the end of the run; a
    refused request never waits. A request that waits in a gateway's queue has two waits, both from
    its arrival: with worker ``EVERYWHERE`` until it leaves the gateway, and at its worker.
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
    """Return the union of intervals; intervals that only touch are not joined.

    If one wait ends when the next wait begins, the queue is empty for an instant, and the fairness
    theorems require a queue that is never empty.
    """
    return merged_each(np.zeros(len(start), dtype=np.int64), start, end)[1]


def merged_each(queue: Ints, start: Floats, end: Floats) -> tuple[Ints, Intervals]:
    """Merge each queue's overlapping intervals; return the merged intervals and their queues.

    Queues are numbered from 0. Arguments have the shape (n_intervals,). The merged intervals are
    sorted by queue and start.
    """
    if len(start) == 0:
        return queue, Intervals(start, end)
    order = np.lexsort((start, queue))
    queue, start, end = queue[order], start[order], end[order]
    # ``reach`` is the latest end so far of an interval in the same queue, and ``latest`` is the
    # rank of this end in ``ends``.
    ends = np.sort(end)
    before = queue * len(ends)
    latest = np.maximum.accumulate(before + np.searchsorted(ends, end)) - before
    reach = ends[latest]
    first = np.concatenate([[True], (start[1:] >= reach[:-1]) | (queue[1:] != queue[:-1])])
    last = np.concatenate([first[1:], [True]])
    return queue[first], Intervals(start[first], reach[last])


# A run is below saturation if the queue is empty for more than 5% of the window.
DEMAND_LIMITED_ABOVE = 0.05


def unqueued_share(requests: Requests, horizon_s: float, window: Window) -> float:
    """Return the fraction of the window in which no request waited; NaN for an empty window."""
    if not window.length_s:
        return float("nan")
    table = waits(requests, horizon_s)
    start, end = np.maximum(table.start, window.start_s), np.minimum(table.end, window.end_s)
    inside = start < end
    queued = merged(start[inside], end[inside])
    queued_s = float((queued.end - queued.start).sum())
    return max(0.0, 1 - queued_s / window.length_s)


class Backlog(NamedTuple):
    """The intervals in which clients were backlogged, sorted by client and then by time.

    The intervals of one client do not overlap; times are in seconds.
    """

    client: Ints
    start: Floats
    end: Floats

    @classmethod
    def of_requests(cls, requests: Requests, facts: Facts) -> Backlog:
        """Return the intervals in which each client had a request waiting at every worker.

        The proof of [DLPM] Theorem 5.1 assumes a backlog at every worker. A request in a gateway's
        queue counts as waiting at every worker. Workers that compute no prompts have no queue, and
        are ignored.
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
        """Return whether two clients ever waited at the same time."""
        order = np.argsort(self.start, kind="stable")
        reach = np.maximum.accumulate(self.end[order])
        return bool(np.any(self.start[order][1:] < reach[:-1]))

    def depth(self, at_s: Floats) -> Ints:
        """Return how many clients have a backlog at each time, including backlogs that just end."""
        begun = np.searchsorted(np.sort(self.start), at_s, "right")
        over = np.searchsorted(np.sort(self.end), at_s, "left")
        return begun - over

    def together(self, others: Backlog) -> Backlog:
        """Return the intervals in which a client is backlogged both here and in ``others``."""
        every = np.arange(len(others.client))
        other, own = Overlaps(self).found(others, every, others.client)
        return Backlog(
            self.client[own],
            np.maximum(self.start[own], others.start[other]),
            np.minimum(self.end[own], others.end[other]),
        )


class Overlaps:
    """A search structure for the rows of a table that overlap with given intervals."""

    def __init__(self, table: Backlog) -> None:
        # Times are replaced by their ranks, so that one integer can encode a client and a time.
        self._times = np.unique(np.concatenate([table.start, table.end]))
        self._starts = self._keys(table.client, np.searchsorted(self._times, table.start))
        self._ends = self._keys(table.client, np.searchsorted(self._times, table.end))

    def found(self, others: Backlog, row: Ints, client: Ints) -> tuple[Ints, Ints]:
        """Return the rows of ``table`` whose intervals overlap in time with rows of ``others``.

        Row ``row[i]`` of ``others`` is compared with the intervals of ``client[i]`` in ``table``.
        For each overlapping pair, the result contains the index i in ``row`` and the row number in
        ``table``; the pairs are in ascending order.
        """
        begun = np.searchsorted(self._times, others.start, "right")
        over = np.searchsorted(self._times, others.end, "left")
        # The rows that overlap with an interval are consecutive. The first overlapping row ends
        # after the interval's start, and the last overlapping row starts before the interval's end.
        low = np.searchsorted(self._ends, self._keys(client, begun[row]))
        high = np.searchsorted(self._starts, self._keys(client, over[row]))
        return spread(low, np.maximum(0, high - low))

    def _keys(self, client: Ints, rank: Ints) -> Ints:
        keys: Ints = client * (len(self._times) + 1) + rank
        return keys
