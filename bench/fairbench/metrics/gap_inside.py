"""The exact gaps of joint backlogs, from bookings in the few cells that decide them."""

from __future__ import annotations

import numpy as np

from fairbench.metrics.gap_bookings import END, BookingsByCell, Places
from fairbench.metrics.gap_cells import Cells
from fairbench.metrics.gap_pairs import AT_ONCE, Differences, Joint
from fairbench.metrics.ragged import portions
from fairbench.metrics.records import Facts, Floats, Ints
from fairbench.metrics.service import View
from fairbench.metrics.service_log import ServiceLog

ROUNDING = 1e-9  # of a gap: what sums in another order may differ by is far less


class Inside:
    """Differences between two clients at every instant of a possible extreme."""

    def __init__(self, log: ServiceLog, view: View, cells: Cells, facts: Facts) -> None:
        self._cells, self._weights = cells, facts.client_weights
        self._bookings = BookingsByCell(log, view, cells, facts)

    def ranges(self, joint: Joint, above: float) -> Floats:
        """Return the range of the service difference of two clients over given joint backlogs.

        A range greater than ``above`` is exact, as is the largest; others are upper bounds.
        """
        parts = portions(joint.high + 1 - joint.low, AT_ONCE)
        return np.concatenate([self._ranges(joint.of_rows(some), above) for some in parts])

    def _ranges(self, joint: Joint, above: float) -> Floats:
        high, low = np.full(len(joint.start), -np.inf), np.full(len(joint.start), np.inf)
        row, cell = self._wanted(joint, above)
        first, second = Places(joint.first[row], cell), Places(joint.second[row], cell)
        for some in self._bookings.portions(first, second):
            own, difference = self._states(joint, row[some], cell[some])
            np.maximum.at(high, own, difference)
            np.minimum.at(low, own, difference)
        ranges: Floats = high - low
        return ranges

    def _wanted(self, joint: Joint, above: float) -> tuple[Ints, Ints]:
        """Return the cells whose values may differ so much that a range exceeds ``above``.

        The result is the joint backlog and the cell of each. Ranges smaller than a known range
        between edges are not searched.
        """
        states = Differences.of(self._cells, joint)
        above = max(above, float(states.at_least.max(initial=0.0)) * (1 - ROUNDING))
        row, cell = states.row, states.cell
        wanted = states.most - states.lowest[row] > above
        wanted |= states.highest[row] - states.least > above
        wanted |= (cell == joint.low[row]) | (cell == joint.high[row])
        return row[wanted], cell[wanted]

    def _states(self, joint: Joint, row: Ints, cell: Ints) -> tuple[Ints, Floats]:
        """Return every difference within cells of joint backlogs, and its joint backlog.

        Differences are taken at the ends of a joint backlog, and at each booking of its clients
        inside it.
        """
        one = self._bookings.of(Places(joint.first[row], cell))
        two = self._bookings.of(Places(joint.second[row], cell))
        starts = np.flatnonzero(cell == joint.low[row])
        ends = np.flatnonzero(cell == joint.high[row])
        place = np.concatenate([one.place, two.place, starts, ends])
        at_s = np.concatenate([one.at_s, two.at_s, joint.start[row[starts]], joint.end[row[ends]]])
        kind = np.concatenate([one.kind, two.kind, np.full(len(starts) + len(ends), END)])
        tokens = np.zeros((2, len(place)))
        tokens[0, : len(one.place)] = one.tokens
        tokens[1, len(one.place) : len(one.place) + len(two.place)] = two.tokens
        order = np.lexsort((kind, at_s, place))
        place, at_s, kind = place[order], at_s[order], kind[order]
        own = row[place]
        ours = self._service(joint.first[own], cell[place], place, tokens[0, order])
        theirs = self._service(joint.second[own], cell[place], place, tokens[1, order])
        settled = np.ones(len(order), dtype=np.bool_)  # all of that instant and kind is booked
        settled[:-1] = (place[1:] != place[:-1]) | (at_s[1:] != at_s[:-1]) | (kind[1:] != kind[:-1])
        begun = at_s >= joint.start[own]
        over = (at_s > joint.end[own]) | ((at_s == joint.end[own]) & (kind != END))
        kept = settled & begun & ~over
        return own[kept], (ours - theirs)[kept]

    def _service(self, client: Ints, cell: Ints, place: Ints, tokens: Floats) -> Floats:
        """Return the normalised service after each booking: the cell's edge plus bookings."""
        total = np.cumsum(tokens)
        begin = np.flatnonzero(np.diff(place, prepend=-1))
        before = np.repeat((total - tokens)[begin], np.diff(begin, append=len(place)))
        since = total - before
        service: Floats = (self._cells.tokens[client, cell] + since) / self._weights[client]
        return service
