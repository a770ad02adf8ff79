"""Service by cells of time: what bounds the gap of two clients without looking inside a cell."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from fairbench.metrics.backlog import Backlog
from fairbench.metrics.ragged import spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.service_log import ServiceLog

LEAST_CELLS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Time cut at ``edge_s``, and what each client has of it.

    A cell is what ends in (edge, next edge] and starts in [edge, next edge). ``tokens`` is each
    client's service at an edge, and ``service`` that over its weight: [client, edge]. ``waits``
    says in which cells a client was backlogged at some instant, ``begins`` in which a backlog of it
    began: [client, cell].
    """

    edge_s: Floats
    tokens: Floats
    service: Floats
    waits: Flags
    begins: Flags

    def of_ends(self, at_s: Floats) -> Ints:
        """The cell of what ends at an instant."""
        cells: Ints = np.searchsorted(self.edge_s, at_s, "left") - 1
        return cells

    def of_starts(self, at_s: Floats) -> Ints:
        """The cell of what starts at an instant."""
        cells: Ints = np.searchsorted(self.edge_s, at_s, "right") - 1
        return cells

    def ahead(self) -> Floats:
        """At most how far each client has got ahead of the average, of a backlog's beginning."""
        return _risen(*self._deviation(), self.waits, self.begins)

    def behind(self) -> Floats:
        """At most how far it has fallen behind."""
        low, high = self._deviation()
        return _risen(-high, -low, self.waits, self.begins)

    def _deviation(self) -> tuple[Floats, Floats]:
        """Bounds of each client's service less what the waiting ones get on average by then.

        That is in whole tokens: sums of these are exact.
        """
        gained = np.where(self.waits, np.diff(self.service, axis=1), 0.0).sum(axis=0)
        average = np.floor(np.cumsum(gained / np.maximum(1, self.waits.sum(axis=0))))
        before = np.concatenate([[0.0], average[:-1]])
        return self.service[:, :-1] - average, self.service[:, 1:] - before

    def bounded(self, first: int, joint: Backlog, above: float) -> tuple[Backlog, Floats]:
        """Those joint backlogs of ``first`` in which the gap may be ``above``, and how large."""
        mine = self.service[first]
        low, high = self.of_ends(joint.start), self.of_ends(joint.end) + 1
        ours, theirs = mine[high] - mine[low], self._at(joint, high) - self._at(joint, low)
        kept = np.maximum(ours, theirs) > above  # service only grows
        joint, low, high = joint.of_rows(kept), low[kept], high[kept]
        if not len(low):
            return joint, np.empty(0)
        row, cell = spread(low, high - low)
        second = joint.client[row]
        most = mine[cell + 1] - self.service[second, cell]
        least = mine[cell] - self.service[second, cell + 1]
        begin = np.cumsum(high - low) - (high - low)
        return joint, np.maximum.reduceat(most, begin) - np.minimum.reduceat(least, begin)

    def _at(self, joint: Backlog, edge: Ints) -> Floats:
        service: Floats = self.service[joint.client, edge]
        return service


def divided(log: ServiceLog, view: View, backlog: Backlog, facts: Facts) -> Cells:
    """Cells in which about as much happens.

    No more of them than an average client has rows, so that a table of them is no larger than the
    log, nor than a few times the root of all rows, since what goes cell by cell takes as long.
    """
    clients, rows = len(facts.clients), len(log)
    cells = max(LEAST_CELLS, min(rows // clients, 4 * isqrt(rows)))
    edge_s = _edges(log, backlog, cells)
    tokens = cumulative(log, view, edge_s, clients, facts.weights, with_ends=True)
    first = np.searchsorted(edge_s, backlog.start, "left") - 1
    after = np.searchsorted(edge_s, backlog.end, "left")
    begins = np.zeros((clients, len(edge_s) - 1), dtype=np.bool_)
    begins[backlog.client, first] = True
    change = np.zeros((clients, len(edge_s)), dtype=np.int64)
    np.add.at(change, (backlog.client, first), 1)
    np.add.at(change, (backlog.client, after), -1)
    waits = np.cumsum(change, axis=1)[:, :-1] > 0
    return Cells(edge_s, tokens, tokens / facts.client_weights[:, np.newaxis], waits, begins)


def _edges(log: ServiceLog, backlog: Backlog, cells: int) -> Floats:
    """Instants at which rows end and at least two clients wait, and around all backlogs."""
    ends = [part.end_s[backlog.depth(part.end_s) > 1] for part in log.parts()]
    shared = np.sort(np.concatenate(ends or [np.empty(0)]))
    if len(shared):
        shared = shared[np.linspace(0, len(shared) - 1, cells + 1).astype(np.int64)]
    before = np.nextafter(backlog.start.min(), -np.inf)
    return np.unique(np.concatenate([[before], shared, [backlog.end.max()]]))


def _risen(low: Floats, high: Floats, waits: Flags, begins: Flags) -> Floats:
    """At most how far a value has risen by each cell, since some instant of the same backlog.

    It is between ``low`` and ``high`` in a cell: [client, cell]. Minus infinity without a backlog.
    """
    risen = np.empty_like(high)
    least = np.full(len(low), np.inf)
    for cell in range(low.shape[1]):
        here = np.where(waits[:, cell], low[:, cell], np.inf)
        least = np.minimum(least, here)
        risen[:, cell] = high[:, cell] - least
        goes_on = waits[:, cell] & ~begins[:, cell]
        least = np.where(goes_on, least, here)
    return risen
