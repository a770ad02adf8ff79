"""The backlogs of all clients as one table."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from fairbench.metrics.records import Flags, Floats, Ints
from fairbench.metrics.waiting import Intervals, overlaps


class Backlog(NamedTuple):
    """One row per interval in which a client was backlogged: by client, then in ascending order."""

    client: Ints
    start: Floats
    end: Floats

    @classmethod
    def of(cls, intervals: list[Intervals]) -> Self:
        """That of each client from 0 on."""
        counts = [len(one.start) for one in intervals]
        start = np.concatenate([one.start for one in intervals] or [np.empty(0)])
        end = np.concatenate([one.end for one in intervals] or [np.empty(0)])
        return cls(np.repeat(np.arange(len(counts)), counts), start, end)

    @property
    def shared(self) -> bool:
        """Whether two clients were backlogged together at all."""
        order = np.argsort(self.start, kind="stable")
        reach = np.maximum.accumulate(self.end[order])
        return bool(np.any(self.start[order][1:] < reach[:-1]))

    def depth(self, at_s: Floats) -> Ints:
        """How many clients were backlogged then, those whose backlog begins or ends there too."""
        begun = np.searchsorted(np.sort(self.start), at_s, "right")
        over = np.searchsorted(np.sort(self.end), at_s, "left")
        return begun - over

    def joint(self, client: int, others: Flags) -> Backlog:
        """The intervals in which a client was backlogged together with one of the others."""
        low, high = np.searchsorted(self.client, [client, client + 1])
        mine = Intervals(self.start[low:high], self.end[low:high])
        theirs = self.of_rows(others[self.client])
        row, own = overlaps(Intervals(theirs.start, theirs.end), mine)
        return Backlog(
            theirs.client[row],
            np.maximum(theirs.start[row], mine.start[own]),
            np.minimum(theirs.end[row], mine.end[own]),
        )

    def of_rows(self, rows: Flags) -> Backlog:
        """Some of the rows."""
        return Backlog(self.client[rows], self.start[rows], self.end[rows])

    def row(self, number: int) -> tuple[int, float, float]:
        """One row."""
        return int(self.client[number]), float(self.start[number]), float(self.end[number])
