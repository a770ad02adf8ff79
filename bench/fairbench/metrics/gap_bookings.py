"""What each client was booked, by cells: of the log only the places of rows are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fairbench.metrics.by_client import rows_of
from fairbench.metrics.gap_cells import Cells
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Service
from fairbench.metrics.service import View, amounts, step_ends
from fairbench.metrics.service_log import ServiceLog

END, START = 0, 1  # in this order at one instant
AT_ONCE = 2**20  # bookings in memory, of those that one cell does not have alone


class Bookings(NamedTuple):
    """Tokens of a client by instant, and whether an iteration ends or starts there."""

    at_s: Floats
    kind: Ints
    tokens: Floats


class _Part(NamedTuple):
    """The rows of a part of the log that touch cells where several wait, client after client.

    ``bounds`` says where those of each client begin, ``first`` and ``last`` which cells they touch.
    """

    begin: int  # of the part in the log
    after: int
    rows: Ints
    bounds: Ints
    first: Ints
    last: Ints

    @classmethod
    def of(cls, part: Service, begin: int, cells: Cells, clients: int) -> _Part:
        """That of a part which begins with a row of the log."""
        first, last = _cells_of(part, cells)
        shared = np.append(0, np.cumsum(cells.waits.sum(axis=0) > 1))  # no other cell is wanted
        touching = np.flatnonzero(shared[last + 1] > shared[first])
        of = list(rows_of(part.client[touching], clients))
        rows = touching[np.concatenate(of)]
        # They stay as long as the gap is sought, of a log that may be longer than memory.
        small = np.min_scalar_type(-max(len(part), cells.waits.shape[1]))
        return cls(
            *(begin, begin + len(part), rows.astype(small)),
            np.cumsum([0, *map(len, of)]),
            *(first[rows].astype(small), last[rows].astype(small)),
        )

    def touching(self, client: int, upto: Ints) -> Ints:
        """Which of ``rows`` are a client's and touch wanted cells, counted by ``upto``."""
        low, high = self.bounds[client], self.bounds[client + 1]
        last = self.last[low:high].astype(np.int64)
        at: Ints = low + np.flatnonzero(upto[last + 1] > upto[self.first[low:high]])
        return at


class BookingsByCell:
    """What each client was booked inside cells where several wait."""

    def __init__(self, log: ServiceLog, view: View, cells: Cells, facts: Facts) -> None:
        self._log, self._view, self._cells, self._weights = log, view, cells, facts.weights
        self._parts: list[_Part] = []
        for part in log.parts():
            begin = self._parts[-1].after if self._parts else 0
            self._parts.append(_Part.of(part, begin, cells, len(facts.clients)))

    def portions(self, clients: tuple[int, ...], wanted: Flags) -> Iterator[Flags]:
        """The wanted cells, so many at a time that what clients are booked in them is not much."""
        booked = np.zeros(len(wanted))
        for client in clients:
            for part, at, rows in self._touching(client, wanted):
                booked += np.bincount(part.first[at], 1 + rows.steps, minlength=len(wanted))
        cells = np.flatnonzero(wanted)
        portion = np.cumsum(booked)[cells] // AT_ONCE
        for some in np.split(cells, np.flatnonzero(np.diff(portion)) + 1):
            chosen = np.zeros(len(wanted), dtype=np.bool_)
            chosen[some] = True
            yield chosen

    def of(self, client: int, wanted: Flags) -> Bookings:
        """What is booked for a client in the wanted cells."""
        found = [Bookings(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0))]
        found += [self._of_rows(rows, wanted) for _, _, rows in self._touching(client, wanted)]
        return Bookings(*map(np.concatenate, zip(*found, strict=True)))

    def _touching(self, client: int, wanted: Flags) -> Iterator[tuple[_Part, Ints, Service]]:
        """The rows of a client that touch wanted cells, part by part, and their places in it."""
        upto = np.append(0, np.cumsum(wanted))
        for part in self._parts:
            at = part.touching(client, upto)
            if len(at):
                yield part, at, self._log.between(part.begin, part.after).take(part.rows[at])

    def _of_rows(self, log: Service, wanted: Flags) -> Bookings:
        """What rows book in the wanted cells."""
        cells = self._cells
        at_start, _, stepwise = amounts(log, self._view, self._weights)
        row, step_end_s = step_ends(log, np.arange(len(log)))
        at_s = np.concatenate([log.start_s, step_end_s])
        kind = np.repeat([START, END], [len(log), len(row)])
        tokens = np.concatenate([at_start, stepwise[row] / log.steps[row]])
        cell = np.concatenate([cells.of_starts(log.start_s), cells.of_ends(step_end_s)])
        inside = (cell >= 0) & (cell < len(wanted))
        inside[inside] = wanted[cell[inside]]
        return Bookings(at_s[inside], kind[inside], tokens[inside])


def _cells_of(rows: Service, cells: Cells) -> tuple[Ints, Ints]:
    """The first and the last cell that each row touches."""
    final = len(cells.edge_s) - 2
    first = np.clip(cells.of_starts(rows.start_s), 0, final)
    return first, np.clip(cells.of_ends(rows.end_s), first, final)
