"""The numbers of waiting requests of all clients over time, as one table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.ragged import spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Requests
from fairbench.metrics.waiting import EVERYWHERE, Intervals, Waits, merged_each, waits


class Backlog(NamedTuple):
    """A table of backlogged intervals, sorted by client and then by time.

    The intervals of a client are disjoint.
    """

    client: Ints
    start: Floats
    end: Floats

    @classmethod
    def of(cls, requests: Requests, facts: Facts) -> Backlog:
        """Return when each client had a request waiting, at every worker or at any.

        The condition is on every worker because the proof of [DLPM] Theorem 5.1 presumes it;
        nothing implies it. Workers that compute no prompts have no queue.
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

    def of_client(self, client: int) -> Intervals:
        """Return the intervals in which one client was backlogged."""
        low, high = np.searchsorted(self.client, [client, client + 1])
        return Intervals(self.start[low:high], self.end[low:high])

    def of_rows(self, rows: Flags | Ints) -> Backlog:
        """Return some of the rows."""
        return Backlog(self.client[rows], self.start[rows], self.end[rows])

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
        # From the first that ends after the other starts, to the first that starts when it ends.
        low = np.searchsorted(self._ends, self._keys(client, begun[row]))
        high = np.searchsorted(self._starts, self._keys(client, over[row]))
        return spread(low, np.maximum(0, high - low))

    def _keys(self, client: Ints, rank: Ints) -> Ints:
        keys: Ints = client * (len(self._times) + 1) + rank
        return keys
