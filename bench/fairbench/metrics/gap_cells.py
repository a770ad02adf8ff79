"""Service by cells of time, which bounds the gap of two clients without details of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np

from fairbench.metrics.backlog import Backlog
from fairbench.metrics.records import Facts, Flags, Floats, Ints
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.service_log import ServiceLog
from fairbench.metrics.stretches import Stretches

LEAST_CELLS = 16
FEW = 16  # clients of whom every pair is looked at anyway
MANY_CELLS = 2**13


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Time divided at ``edge_s``, with the service of each client at the edges.

    A cell is what ends in (edge, next edge] and starts in [edge, next edge). ``tokens`` is each
    client's service at an edge, and ``service`` that over its weight: [client, edge]. ``waits``
    says in which cells a client was backlogged at some instant, ``begins`` in which a backlog of it
    began: [cell, client].
    """

    edge_s: Floats
    tokens: Floats
    service: Floats
    waits: Flags
    begins: Flags

    def __len__(self) -> int:
        return len(self.edge_s) - 1

    def of_ends(self, at_s: Floats) -> Ints:
        """Return the cell of an event that ends at an instant."""
        cells: Ints = np.searchsorted(self.edge_s, at_s, "left") - 1
        return cells

    def of_starts(self, at_s: Floats) -> Ints:
        """Return the cell of an event that starts at an instant."""
        cells: Ints = np.searchsorted(self.edge_s, at_s, "right") - 1
        return cells

    def served(self, client: Ints, edge: Ints) -> Floats:
        """Return the normalised service of clients at edges."""
        service: Floats = self.service.ravel().take(client * len(self.edge_s) + edge)
        return service

    def ahead(self) -> Floats:
        """Return upper bounds on each client's lead over the average since its backlog began.

        The shape is [cell, client], with minus infinity outside backlogs.
        """
        return self._risen(*self._deviation())

    def behind(self) -> Floats:
        """Return upper bounds on each client's lag behind the average."""
        low, high = self._deviation()
        return self._risen(-high, -low)

    def _deviation(self) -> tuple[Floats, Floats]:
        """Return bounds on each client's service minus the average of the waiting clients.

        The average is in whole tokens, whose sums are exact.
        """
        service = np.ascontiguousarray(self.service.T)
        gained = np.where(self.waits, np.diff(service, axis=0), 0.0).sum(axis=1)
        average = np.floor(np.cumsum(gained / np.maximum(1, self.waits.sum(axis=1))))
        before = np.concatenate([[0.0], average[:-1]])
        return service[:-1] - average[:, np.newaxis], service[1:] - before[:, np.newaxis]

    def _risen(self, low: Floats, high: Floats) -> Floats:
        """Return upper bounds on the rise of a value by each cell within its backlog.

        The value lies between ``low`` and ``high`` in a cell.
        """
        low = np.where(self.waits, low, np.inf)
        begins_anew = self.begins | ~self.waits
        least = np.full(low.shape[1], np.inf)
        since = np.empty_like(low)
        for cell, here in enumerate(low):
            np.minimum(least, here, out=least)
            since[cell] = least
            np.copyto(least, here, where=begins_anew[cell])
        return np.where(self.waits, high - since, -np.inf)


def divided(log: ServiceLog, view: View, backlog: Backlog, facts: Facts) -> Cells:
    """Divide the run into cells of about equal numbers of events.

    There are no more cells than an average client has rows, so that a table of cells is no larger
    than the log. There are also no more than a few times the square root of all rows, since work
    per cell takes as long. The latter limit does not apply to few clients.

    Args:
        log: The run's service log.
        view: View of service to count.
        backlog: Intervals in which clients had requests waiting.
        facts: Facts about the run that the tables do not contain.
    """
    clients, rows = len(facts.clients), len(log)
    most = MANY_CELLS if clients <= FEW else 4 * isqrt(rows)
    cells = max(LEAST_CELLS, min(rows // clients, most))
    edge_s = _edges(log, backlog, cells)
    tokens = cumulative(log, view, edge_s, clients, facts.weights, with_ends=True)
    first = np.searchsorted(edge_s, backlog.start, "left") - 1
    after = np.searchsorted(edge_s, backlog.end, "left")
    begins = np.zeros((len(edge_s) - 1, clients), dtype=np.bool_)
    begins[first, backlog.client] = True
    change = np.zeros((len(edge_s), clients), dtype=np.int64)
    np.add.at(change, (first, backlog.client), 1)
    np.add.at(change, (after, backlog.client), -1)
    waits = np.cumsum(change, axis=0)[:-1] > 0
    return Cells(edge_s, tokens, tokens / facts.client_weights[:, np.newaxis], waits, begins)


def _edges(log: ServiceLog, backlog: Backlog, cells: int) -> Floats:
    """Return instants at which rows end while two clients wait, and the ends of backlogs."""
    ends = [np.empty(0)]
    for part in log.parts():
        own = Stretches.of(part)
        several = backlog.depth(own.end_s) > 1
        ends.append(np.repeat(own.end_s[several], own.rows[several]))
    shared = np.sort(np.concatenate(ends))
    if len(shared):
        shared = shared[np.linspace(0, len(shared) - 1, cells + 1).astype(np.int64)]
    before = np.nextafter(backlog.start.min(), -np.inf)
    return np.unique(np.concatenate([[before], shared, [backlog.end.max()]]))
