"""Service bookings of clients by cell; of the log, only row positions are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fairbench.metrics.gap_cells import Cells
from fairbench.metrics.ragged import in_order, portions, spread
from fairbench.metrics.records import Facts, Floats, Ints, Service
from fairbench.metrics.service import View, amounts
from fairbench.metrics.service_log import ServiceLog
from fairbench.metrics.stretches import Stretches, step_times, steps_by

END, START = 0, 1  # in this order at one instant
AT_ONCE = 2**20  # bookings in memory, of those that one place does not have alone


class Places(NamedTuple):
    """Clients in cells."""

    client: Ints
    cell: Ints


class Bookings(NamedTuple):
    """Tokens at an instant, which place they are of, and whether an iteration ends or starts."""

    place: Ints
    at_s: Floats
    kind: Ints
    tokens: Floats


class _Part(NamedTuple):
    """The rows of a part of the log that touch cells where several wait, client after client.

    ``first`` and ``reach`` are the first cell of each, and the last that it or one before it of its
    client touches, as places: client after client, cell after cell.
    """

    begin: int  # of the part in the log
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
        shared = np.append(0, np.cumsum(cells.waits.sum(axis=1) > 1))  # no other cell is wanted
        touching = np.flatnonzero((shared[last + 1] > shared[first])[own.of_row])
        if np.any(own.start_s[1:] < own.start_s[:-1]):  # first by time
            touching = touching[np.argsort(part.start_s[touching], kind="stable")]
        rows = touching[in_order(part.client[touching], clients)[0]]
        before = part.client[rows] * len(cells)
        # They stay as long as the gap is sought, of a log that may be longer than memory.
        small = np.min_scalar_type(-max(len(part), clients * len(cells)))
        stretch = own.of_row[rows]
        return cls(
            *(begin, begin + len(part), rows.astype(small)),
            (before + first[stretch]).astype(small),
            np.maximum.accumulate(before + last[stretch]).astype(small),
        )

    def touching(self, places: Places, cells: Cells) -> tuple[Ints, Ints]:
        """Return the rows that may touch given places: pairs of place and index in ``rows``."""
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
        """Equally many places each, so many at a time that what is booked there is not much."""
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
