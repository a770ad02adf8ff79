"""The exact gap of two clients, from their bookings inside the few cells that can decide it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.backlog import Backlog
from fairbench.metrics.by_client import rows_of
from fairbench.metrics.gap_cells import Cells
from fairbench.metrics.ragged import spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Service
from fairbench.metrics.service import View, amounts, step_ends
from fairbench.metrics.service_log import ServiceLog, joined

END, START = 0, 1  # in this order at one instant


class _Bookings(NamedTuple):
    """Tokens of a client by instant, and whether an iteration ends or starts there."""

    at_s: Floats
    kind: Ints
    tokens: Floats


class Inside:
    """The rows of each client in cells where several wait, and the cells that each row touches."""

    def __init__(self, log: ServiceLog, view: View, cells: Cells, facts: Facts) -> None:
        shared = cells.waits.sum(axis=0) > 1  # no other cell is wanted
        rows = joined([_touching(part, cells, shared) for part in log.parts()])
        self._log, self._cells, self._weights = rows, cells, facts.client_weights
        self._at_start, _, self._stepwise = amounts(rows, view, facts.weights)
        self._rows = list(rows_of(rows.client, len(facts.clients)))
        self._first, self._last = _cells_of(rows, cells)

    def ranges(self, first: int, second: int, joint: Backlog, above: float) -> Floats:
        """The range of the difference between two clients over each of their joint backlogs.

        It is exact where it is ``above``, else at most that.
        """
        cells = self._cells
        wanted = self._wanted(first, second, joint, above)
        one, two = self._bookings(first, wanted), self._bookings(second, wanted)
        # Markers, so that there is a state at both ends of each.
        at_s = np.concatenate([one.at_s, two.at_s, joint.start, joint.end])
        kind = np.concatenate([one.kind, two.kind, np.full(2 * len(joint.start), END)])
        order = np.lexsort((kind, at_s))
        at_s, kind = at_s[order], kind[order]
        cell = np.where(kind == END, cells.of_ends(at_s), cells.of_starts(at_s))
        tokens = np.zeros((2, len(order)))
        tokens[0, : len(one.at_s)] = one.tokens
        tokens[1, len(one.at_s) : len(one.at_s) + len(two.at_s)] = two.tokens
        ours, theirs = tokens[:, order]
        difference = self._service(first, ours, cell) - self._service(second, theirs, cell)
        settled = np.append((at_s[1:] != at_s[:-1]) | (kind[1:] != kind[:-1]), True)
        at_s, difference = at_s[settled], np.append(difference[settled], 0.0)
        bounds = np.empty(2 * len(joint.start), dtype=np.int64)
        bounds[0::2] = np.searchsorted(at_s, joint.start)
        bounds[1::2] = np.searchsorted(at_s, joint.end) + 1  # exclusive
        high = np.maximum.reduceat(difference, bounds)[::2]
        low = np.minimum.reduceat(difference, bounds)[::2]
        ranges: Floats = high - low
        return ranges

    def _wanted(self, first: int, second: int, joint: Backlog, above: float) -> Flags:
        """The cells in which the difference may be so high or low that a range is ``above``."""
        low, high = self._cells.of_ends(joint.start), self._cells.of_ends(joint.end)
        row, cell = spread(low, high + 1 - low)
        mine, theirs = self._cells.service[first], self._cells.service[second]
        most, least = mine[cell + 1] - theirs[cell], mine[cell] - theirs[cell + 1]
        begin = np.cumsum(high + 1 - low) - (high + 1 - low)
        highest = np.maximum.reduceat(most, begin)
        lowest = np.minimum.reduceat(least, begin)
        decides = (most - lowest[row] > above) | (highest[row] - least > above)
        wanted = np.zeros(len(mine) - 1, dtype=np.bool_)
        wanted[cell[decides]] = True
        wanted[low] = wanted[high] = True
        return wanted

    def _bookings(self, client: int, wanted: Flags) -> _Bookings:
        """What is booked for a client in the wanted cells."""
        log, cells = self._log, self._cells
        upto = np.append(0, np.cumsum(wanted))
        rows = self._rows[client]
        rows = rows[upto[self._last[rows] + 1] > upto[self._first[rows]]]
        row, step_end_s = step_ends(log, rows)
        at_s = np.concatenate([log.start_s[rows], step_end_s])
        kind = np.repeat([START, END], [len(rows), len(row)])
        tokens = np.concatenate([self._at_start[rows], self._stepwise[row] / log.steps[row]])
        cell = np.concatenate([cells.of_starts(log.start_s[rows]), cells.of_ends(step_end_s)])
        inside = (cell >= 0) & (cell < len(wanted))
        inside[inside] = wanted[cell[inside]]
        return _Bookings(at_s[inside], kind[inside], tokens[inside])

    def _service(self, client: int, tokens: Floats, cell: Ints) -> Floats:
        """Normalised service after each booking: that at its cell's edge and what came since."""
        total = np.cumsum(tokens)
        begin = np.flatnonzero(np.diff(cell, prepend=-1))
        before = np.repeat((total - tokens)[begin], np.diff(begin, append=len(cell)))
        since = total - before
        service: Floats = (self._cells.tokens[client, cell] + since) / self._weights[client]
        return service


def _touching(part: Service, cells: Cells, wanted: Flags) -> Service:
    """The rows that touch a wanted cell."""
    first, last = _cells_of(part, cells)
    upto = np.append(0, np.cumsum(wanted))
    return part.take(upto[last + 1] > upto[first])


def _cells_of(rows: Service, cells: Cells) -> tuple[Ints, Ints]:
    """The first and the last cell that each row touches."""
    final = len(cells.edge_s) - 2
    first = np.clip(cells.of_starts(rows.start_s), 0, final)
    return first, np.clip(cells.of_ends(rows.end_s), first, final)
