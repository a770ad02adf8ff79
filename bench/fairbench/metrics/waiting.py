"""Backlogs: when clients had requests waiting, as the fairness theorems require."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.records import REFUSED, Floats, Ints, Requests, Window


class Intervals(NamedTuple):
    """Disjoint intervals ``[start, end)`` in ascending order, in seconds."""

    start: Floats
    end: Floats


EVERYWHERE = -1  # before the cluster: a request there waits for whatever worker takes it


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

    If a wait ends when the next begins, the queue was empty inside an admission pass. The
    client was then not backlogged at that instant, although the theorems require every instant.
    """
    return merged_each(np.zeros(len(start), dtype=np.int64), start, end)[1]


def merged_each(queue: Ints, start: Floats, end: Floats) -> tuple[Ints, Intervals]:
    """Return the unions of intervals per queue, with their queues (numbers from 0).

    Args:
        queue: Queue of each interval, a number from 0, shape (n_intervals,).
        start: Starts in seconds, shape (n_intervals,).
        end: Ends in seconds, shape (n_intervals,).

    Returns:
        Queues, shape (n_unions,), and unions, ordered by queue and start.
    """
    if len(start) == 0:
        return queue, Intervals(start, end)
    order = np.lexsort((start, queue))
    queue, start, end = queue[order], start[order], end[order]
    # The latest end so far, by its rank among all: so that it begins anew with each queue.
    ends = np.sort(end)
    before = queue * len(ends)
    latest = np.maximum.accumulate(before + np.searchsorted(ends, end)) - before
    reach = ends[latest]
    first = np.concatenate([[True], (start[1:] >= reach[:-1]) | (queue[1:] != queue[:-1])])
    last = np.concatenate([first[1:], [True]])
    return queue[first], Intervals(start[first], reach[last])


def unqueued_share(requests: Requests, horizon_s: float, window: Window) -> float:
    """Return the fraction of the window without a waiting request; NaN if it is empty.

    Args:
        requests: Table of the run's requests.
        horizon_s: End of the run, in seconds.
        window: The time window, in seconds.
    """
    if not window.length_s:
        return float("nan")
    table = waits(requests, horizon_s)
    start, end = np.maximum(table.start, window.start_s), np.minimum(table.end, window.end_s)
    inside = start < end
    queued = merged(start[inside], end[inside])
    queued_s = float((queued.end - queued.start).sum())
    return max(0.0, 1 - queued_s / window.length_s)
