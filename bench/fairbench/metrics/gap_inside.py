"""The exact gap of two clients, from their bookings inside the few cells that can decide it."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.backlog import Backlog
from fairbench.metrics.gap_bookings import END, BookingsByCell
from fairbench.metrics.gap_cells import Cells
from fairbench.metrics.ragged import spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints
from fairbench.metrics.service import View
from fairbench.metrics.service_log import ServiceLog

ROUNDING = 1e-9  # of a gap: what sums in another order may differ by is far less


class Inside:
    """Differences between two clients, at every instant at which they can be at an extreme."""

    def __init__(self, log: ServiceLog, view: View, cells: Cells, facts: Facts) -> None:
        self._cells, self._weights = cells, facts.client_weights
        self._bookings = BookingsByCell(log, view, cells, facts)

    def ranges(self, first: int, second: int, joint: Backlog, above: float) -> Floats:
        """The range of the difference between two clients over each of their joint backlogs.

        It is exact where it is ``above``, and the largest is, else at most that.
        """
        wanted = self._wanted(first, second, joint, above)
        high, low = np.full(len(joint.start), -np.inf), np.full(len(joint.start), np.inf)
        for cells in self._bookings.portions((first, second), wanted):
            at_s, difference = self._states(first, second, joint, cells)
            begin = np.searchsorted(at_s, joint.start)
            ends_here = cells[self._cells.of_ends(joint.end)]
            after = np.searchsorted(at_s, joint.end) + ends_here  # exclusive
            some = np.flatnonzero(after > begin)
            bounds = np.column_stack([begin[some], after[some]]).ravel()
            states = np.append(difference, 0.0)  # a bound may be after the last
            high[some] = np.maximum(high[some], np.maximum.reduceat(states, bounds)[::2])
            low[some] = np.minimum(low[some], np.minimum.reduceat(states, bounds)[::2])
        ranges: Floats = high - low
        return ranges

    def _states(
        self, first: int, second: int, joint: Backlog, wanted: Flags
    ) -> tuple[Floats, Floats]:
        """The instants in wanted cells at which something is booked, and the difference then.

        Joint backlogs have one at both ends too.
        """
        cells = self._cells
        one, two = self._bookings.of(first, wanted), self._bookings.of(second, wanted)
        marks = np.concatenate([joint.start, joint.end])
        marks = marks[wanted[cells.of_ends(marks)]]
        at_s = np.concatenate([one.at_s, two.at_s, marks])
        kind = np.concatenate([one.kind, two.kind, np.full(len(marks), END)])
        order = np.lexsort((kind, at_s))
        at_s, kind = at_s[order], kind[order]
        cell = np.where(kind == END, cells.of_ends(at_s), cells.of_starts(at_s))
        tokens = np.zeros((2, len(order)))
        tokens[0, : len(one.at_s)] = one.tokens
        tokens[1, len(one.at_s) : len(one.at_s) + len(two.at_s)] = two.tokens
        ours, theirs = tokens[:, order]
        difference = self._service(first, ours, cell) - self._service(second, theirs, cell)
        settled = np.append((at_s[1:] != at_s[:-1]) | (kind[1:] != kind[:-1]), True)
        return at_s[settled], difference[settled]

    def _wanted(self, first: int, second: int, joint: Backlog, above: float) -> Flags:
        """The cells in which the difference may be so high or low that a range is ``above``.

        Nor need a range be looked for that is less than one between edges, where all is known.
        """
        low, high = self._cells.of_ends(joint.start), self._cells.of_ends(joint.end)
        row, cell = spread(low, high + 1 - low)
        mine, theirs = self._cells.service[first], self._cells.service[second]
        begin = np.cumsum(high + 1 - low) - (high + 1 - low)
        at_edge = mine[cell] - theirs[cell]
        before = cell == low[row]  # the edge before the backlog
        most = np.maximum.reduceat(np.where(before, -np.inf, at_edge), begin)
        least = np.minimum.reduceat(np.where(before, np.inf, at_edge), begin)
        above = max(above, float((most - least).max()) * (1 - ROUNDING))
        most, least = mine[cell + 1] - theirs[cell], mine[cell] - theirs[cell + 1]
        highest = np.maximum.reduceat(most, begin)
        lowest = np.minimum.reduceat(least, begin)
        decides = (most - lowest[row] > above) | (highest[row] - least > above)
        wanted = np.zeros(len(mine) - 1, dtype=np.bool_)
        wanted[cell[decides]] = True
        wanted[low] = wanted[high] = True
        return wanted

    def _service(self, client: int, tokens: Floats, cell: Ints) -> Floats:
        """Normalised service after each booking: that at its cell's edge and what came since."""
        total = np.cumsum(tokens)
        begin = np.flatnonzero(np.diff(cell, prepend=-1))
        before = np.repeat((total - tokens)[begin], np.diff(begin, append=len(cell)))
        since = total - before
        service: Floats = (self._cells.tokens[client, cell] + since) / self._weights[client]
        return service
