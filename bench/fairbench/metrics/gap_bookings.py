"""Cells of joint backlogs, and service bookings of clients by cell, as rows of the log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import in_order, portions, spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Service
from fairbench.metrics.service import View, amounts, cumulative
from fairbench.metrics.stretches import Stretches, step_times, steps_by
from fairbench.metrics.tables import ServiceLog
from fairbench.metrics.waiting import Backlog

LEAST_CELLS = 16
FEW = 16  # number of clients up to which every pair is examined
MANY_CELLS = 2**13


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Time divided at ``edge_s``, with the service of each client at the edges.

    A cell holds bookings that end in (edge, next edge] and start in [edge, next edge). ``tokens``
    is each client's service at an edge, and ``service`` the same over its weight: [client, edge].
    ``waits`` marks the cells in which a client was backlogged at some instant, ``begins`` the cells
    in which one of its backlogs began: [cell, client].
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

        The average is in whole tokens, which have exact sums.
        """
        service = np.ascontiguousarray(self.service.T)
        gained = np.where(self.waits, np.diff(service, axis=0), 0.0).sum(axis=1)
        average = np.floor(np.cumsum(gained / np.maximum(1, self.waits.sum(axis=1))))
        before = np.concatenate([[0.0], average[:-1]])
        return service[:-1] - average[:, np.newaxis], service[1:] - before[:, np.newaxis]

    def _risen(self, low: Floats, high: Floats) -> Floats:
        """Return upper bounds on the rise of a value up to each cell within its backlog.

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


END, START = 0, 1  # the order at one instant
AT_ONCE = 2**20  # bookings in memory, unless one place has more


class Places(NamedTuple):
    """Pairs of a client and a cell, by index."""

    client: Ints
    cell: Ints


class Bookings(NamedTuple):
    """Tokens booked at an instant, the index of their place, and an iteration's end or start."""

    place: Ints
    at_s: Floats
    kind: Ints
    tokens: Floats


class _Part(NamedTuple):
    """The rows of a part of the log in cells where several clients wait, by client.

    ``first`` and ``reach`` are places, sorted by client and then by cell: the first cell of each
    row, and the last cell that it or an earlier row of its client touches.
    """

    begin: int  # first row of the part in the log
    after: int
    rows: Ints
    first: Ints
    reach: Ints

    @classmethod
    def of(cls, part: Service, begin: int, cells: Cells, clients: int) -> _Part:
        """Return the index of a part that begins with row ``begin`` of the log."""
        own = Stretches.of(part)
        final = len(cells) - 1
        first = np.clip(cells.of_starts(own.start_s), 0, final)
        last = np.clip(cells.of_ends(own.end_s), first, final)
        # only cells in which several clients wait are needed
        shared = np.append(0, np.cumsum(cells.waits.sum(axis=1) > 1))
        touching = np.flatnonzero((shared[last + 1] > shared[first])[own.of_row])
        if np.any(own.start_s[1:] < own.start_s[:-1]):  # sorted by time first
            touching = touching[np.argsort(part.start_s[touching], kind="stable")]
        rows = touching[in_order(part.client[touching], clients)[0]]
        before = part.client[rows] * len(cells)
        # The part stays in memory while the gap is sought, so it uses small integers; the log may
        # be larger than memory.
        small = np.min_scalar_type(-max(len(part), clients * len(cells)))
        stretch = own.of_row[rows]
        return cls(
            *(begin, begin + len(part), rows.astype(small)),
            (before + first[stretch]).astype(small),
            np.maximum.accumulate(before + last[stretch]).astype(small),
        )

    def touching(self, places: Places, cells: Cells) -> tuple[Ints, Ints]:
        """Return the rows that may touch the places, as indices into ``places`` and ``rows``."""
        wanted = (places.client * len(cells) + places.cell).astype(self.first.dtype)
        low = np.searchsorted(self.reach, wanted, "left")
        high = np.searchsorted(self.first, wanted, "right")
        return spread(low, np.maximum(0, high - low))


class BookingsByCell:
    """The bookings of each client inside cells in which several clients wait."""

    def __init__(self, log: ServiceLog, view: View, cells: Cells, facts: Facts) -> None:
        self._log, self._view, self._cells, self._weights = log, view, cells, facts.weights
        self._parts: list[_Part] = []
        for part in log.parts():
            begin = self._parts[-1].after if self._parts else 0
            self._parts.append(_Part.of(part, begin, cells, len(facts.clients)))

    def portions(self, *places: Places) -> Iterator[slice]:
        """Divide the places into portions with few bookings each."""
        booked = np.zeros(len(places[0].cell), dtype=np.int64)
        for part in self._parts:
            steps = self._log.between(part.begin, part.after).steps
            for some in places:
                place, at = part.touching(some, self._cells)
                count = np.bincount(place, 1 + steps[part.rows[at]], minlength=len(booked))
                booked += count.astype(np.int64)
        return portions(booked, AT_ONCE)

    def of(self, places: Places) -> Bookings:
        """Return the bookings in given places."""
        nothing = np.empty(0, dtype=np.int64)
        found = [Bookings(nothing, np.empty(0), nothing, np.empty(0))]
        for part in self._parts:
            place, at = part.touching(places, self._cells)
            if len(at):
                rows = self._log.between(part.begin, part.after).take(part.rows[at])
                found += self._of_rows(rows, place, places.cell[place])
        return Bookings(*map(np.concatenate, zip(*found, strict=True)))

    def _of_rows(self, log: Service, place: Ints, cell: Ints) -> Iterator[Bookings]:
        """Yield the bookings of rows in a cell: at their start, and at the ends of their steps."""
        at_start, _, stepwise = amounts(log, self._view, self._weights)
        own = np.flatnonzero((self._cells.of_starts(log.start_s) == cell) & (at_start > 0))
        yield Bookings(place[own], log.start_s[own], np.full(len(own), START), at_start[own])
        begin_s, end_s = self._cells.edge_s[cell], self._cells.edge_s[cell + 1]
        before, by_then = np.zeros(len(log), dtype=np.int64), log.steps.copy()
        inside = (log.start_s >= begin_s) & (log.end_s > begin_s) & (log.end_s <= end_s)
        cut = np.flatnonzero(~inside)
        before[cut] = steps_by(log, cut, begin_s[cut], inclusive=True)
        by_then[cut] = steps_by(log, cut, end_s[cut], inclusive=True)
        row, number = spread(before + 1, by_then - before)
        yield Bookings(
            place[row],
            step_times(log, row, number),
            np.full(len(row), END),
            (stepwise / log.steps)[row],
        )
