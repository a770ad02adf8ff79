"""The pairs of clients that may differ most, and their joint backlogs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import portions, spread
from fairbench.metrics.gap_bookings import FEW, Cells
from fairbench.metrics.records import Floats, Ints
from fairbench.metrics.waiting import Backlog, Overlaps

AT_ONCE = 2**18  # cells of joint backlogs in memory


class Joint(NamedTuple):
    """Joint backlogs of pairs of clients, one per row, with their first and last cells."""

    first: Ints
    second: Ints
    start: Floats
    end: Floats
    low: Ints
    high: Ints

    def of_rows(self, rows: slice | Ints) -> Joint:
        """Return some of the rows."""
        return Joint._make(column[rows] for column in self)


class Pairs:
    """The pairs of clients in their backlogs, with bounds on the lead within each pair."""

    def __init__(self, cells: Cells, backlog: Backlog) -> None:
        self._cells, self._backlog, self._overlaps = cells, backlog, Overlaps(backlog)
        self._low, self._high = cells.of_ends(backlog.start), cells.of_ends(backlog.end)
        self._clients = np.arange(cells.waits.shape[1])
        client = backlog.client  # the client's lead changes at most by the service of its backlog
        self.promise = cells.served(client, self._high + 1) - cells.served(client, self._low)
        if len(self._clients) > FEW:
            self._ahead, self._behind = cells.ahead(), cells.behind()
            self._furthest = self._behind.max(axis=1)
            self.promise = np.minimum(self.promise, self._reach())

    def _reach(self) -> Floats:
        """Return upper bounds on the lead over the client that is furthest behind."""
        reach = (self._ahead + self._furthest[:, np.newaxis]).T.ravel()
        begin = self._backlog.client * len(self._cells)
        bounds = np.column_stack([begin + self._low, begin + self._high + 1]).ravel()
        reached: Floats = np.maximum.reduceat(np.append(reach, -np.inf), bounds)[::2]
        return reached

    def rivals(self, row: int, above: float) -> Ints:
        """Return the clients over which a backlog's client may lead by more than ``above``."""
        client, cells = self._backlog.client[row], slice(self._low[row], self._high[row] + 1)
        if len(self._clients) <= FEW:
            return np.flatnonzero(self._clients != client)
        ahead = self._ahead[cells, client]
        hot = np.flatnonzero(ahead + self._furthest[cells] > above)
        apart = (self._behind[cells][hot] + ahead[hot, np.newaxis]).max(axis=0, initial=-np.inf)
        apart[client] = -np.inf
        return np.flatnonzero(apart > above)

    def joint(self, row: Ints, rival: Ints, above: float) -> Joint:
        """Return the joint backlogs of rows' clients with rivals over which they gain."""
        place, other = self._overlaps.found(self._backlog, row, rival)
        own, backlog = row[place], self._backlog
        client = backlog.client[own]
        low = np.maximum(self._low[own], self._low[other])
        high = np.minimum(self._high[own], self._high[other])
        gained = self._cells.served(client, high + 1) - self._cells.served(client, low)
        kept = np.flatnonzero(gained > above)
        own, other = own[kept], other[kept]
        return Joint(
            client[kept],
            backlog.client[other],
            np.maximum(backlog.start[own], backlog.start[other]),
            np.minimum(backlog.end[own], backlog.end[other]),
            low[kept],
            high[kept],
        )


def bounded(cells: Cells, joint: Joint) -> tuple[Floats, Floats]:
    """Return bounds on the gaps of joint backlogs from the edges of cells."""
    least, most = [np.empty(0)], [np.empty(0)]
    for some in portions(joint.high + 1 - joint.low, AT_ONCE):
        here = joint.of_rows(some)
        states = Differences.of(cells, here)
        least.append(states.at_least)
        most.append(states.at_most)
    return np.concatenate(least), np.concatenate(most)


class Differences(NamedTuple):
    """Bounds on the differences between two clients in each cell of their joint backlogs.

    ``row`` is the joint backlog, ``begin`` the position of its first cell. ``edge`` is the
    difference at a cell's first edge if that is in the backlog, else NaN.
    """

    row: Ints
    cell: Ints
    begin: Ints
    least: Floats
    most: Floats
    edge: Floats

    @classmethod
    def of(cls, cells: Cells, joint: Joint) -> Differences:
        """Return the differences of given joint backlogs."""
        count = joint.high + 1 - joint.low
        row, cell = spread(joint.low, count)
        first, second = joint.first[row], joint.second[row]
        mine, theirs = cells.served(first, cell), cells.served(second, cell)
        least = mine - cells.served(second, cell + 1)
        most = cells.served(first, cell + 1) - theirs
        edge = np.where(cell == joint.low[row], np.nan, mine - theirs)
        return cls(row, cell, np.cumsum(count) - count, least, most, edge)

    @property
    def lowest(self) -> Floats:
        """The lowest difference of each joint backlog."""
        found: Floats = np.minimum.reduceat(self.least, self.begin)
        return found

    @property
    def highest(self) -> Floats:
        """The highest difference of each joint backlog."""
        found: Floats = np.maximum.reduceat(self.most, self.begin)
        return found

    @property
    def at_most(self) -> Floats:
        """The range of the difference over each joint backlog, or an upper bound of it."""
        return self.highest - self.lowest

    @property
    def at_least(self) -> Floats:
        """A lower bound of the range of each joint backlog; 0 without an edge inside."""
        high = np.fmax.reduceat(self.edge, self.begin)
        found: Floats = np.nan_to_num(high - np.fmin.reduceat(self.edge, self.begin))
        return found
