"""The largest difference in service between two clients while both wait at every worker.

[DLPM] Theorems 4.1 and 5.1 and [VTC] Theorem 4.4 bound this difference. Service is as charged at
admission, without recomputation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import portions
from fairbench.metrics.gap_bookings import END, BookingsByCell, Cells, Places, divided
from fairbench.metrics.gap_pairs import AT_ONCE, Differences, Joint, Pairs, bounded
from fairbench.metrics.records import Facts, Floats, Ints
from fairbench.metrics.service import View
from fairbench.metrics.tables import ServiceLog
from fairbench.metrics.waiting import Backlog

ROUNDING = 1e-9  # relative difference of a gap; sums in another order differ by far less


class Inside:
    """Differences between two clients at every instant where an extreme is possible."""

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

        The result is the joint backlog and the cell of each such cell. Ranges smaller than a range
        already known from the edges are not searched.
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
        # everything of that instant and kind is booked
        settled = np.ones(len(order), dtype=np.bool_)
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


PAIRS_AT_ONCE = 2**16  # joint backlogs whose bounds are examined together
WAITING = 2**18  # joint backlogs that may wait for their examination
LOOKS_FIRST, LOOKS_AT_ONCE = 8, 2**12  # joint backlogs that are examined together


class Gap(NamedTuple):
    """The normalised service in ``tokens`` between two clients (indices), and its backlog."""

    tokens: float
    first: int
    second: int
    start_s: float
    end_s: float


def max_service_gap(backlog: Backlog, log: ServiceLog, facts: Facts) -> Gap:
    """Return the largest range of W_f/w_f - W_g/w_g, over pairs and maximal joint backlogs.

    w is the client's weight. The range over an interval is the largest |W_f(t1, t2)/w_f - W_g(t1,
    t2)/w_g| inside it. A backlog [a, e) includes the bookings of iterations that end in (a, e] and
    of iterations that start in [a, e). The reason is the order at one instant: an iteration ends,
    then requests arrive, then a pass admits. The view is the bound's: ``client``, or as charged,
    which is also the view without a bound. Precondition: the ``backlog`` is shared, so that two
    clients had a waiting request on every worker at every instant of some interval.
    """
    view = View.CLIENT if facts.bound and facts.bound.view == "client" else View.CHARGED
    return _Search(backlog, log, view, facts).largest()


class _Search:
    """Branch and bound: the clients that may be furthest ahead are examined first.

    A client is ahead of, or behind, the average of all. The gap of a pair is at most the sum of
    both deviations at some instant, and at most the service that the leading client receives
    meanwhile; the edges of its cells bound the gap of a joint backlog.
    """

    def __init__(self, backlog: Backlog, log: ServiceLog, view: View, facts: Facts) -> None:
        self._cells = divided(log, view, backlog, facts)
        self._pairs = Pairs(self._cells, backlog)
        self._inside = Inside(log, view, self._cells, facts)
        self._known = -1.0  # the gap is larger than this
        self._best = Gap(-1.0, 0, 0, 0.0, 0.0)  # the largest gap of the examined joint backlogs
        # joint backlogs to be examined, with their bounds
        self._waiting: list[tuple[Joint, Floats]] = []

    @property
    def _above(self) -> float:
        """The threshold below which ranges do not matter."""
        return max(self._known, self._best.tokens)

    def largest(self) -> Gap:
        """Return the gap."""
        promise, limit = self._pairs.promise, 1
        rows: list[int] = []
        rivals: list[Ints] = []
        for row in np.argsort(-promise, kind="stable").tolist():
            if promise[row] <= self._above:
                break
            rows.append(row)
            rivals.append(self._pairs.rivals(row, self._above))
            if sum(map(len, rivals)) >= limit:
                self._consider(rows, rivals)
                rows, rivals = [], []
                limit = min(8 * limit, PAIRS_AT_ONCE)
        self._consider(rows, rivals)
        self._look()
        return self._best

    def _consider(self, rows: list[int], rivals: list[Ints]) -> None:
        """Add the joint backlogs of rows' clients with their rivals to the list, if they matter."""
        if not rows:
            return
        row = np.repeat(rows, [len(some) for some in rivals])
        joint = self._pairs.joint(row, np.concatenate(rivals), self._above)
        least, most = bounded(self._cells, joint)
        if (at_least := float(least.max(initial=0.0))) > 0:
            self._known = max(self._known, at_least * (1 - ROUNDING))
        kept = np.flatnonzero(most > self._above)
        self._waiting.append((joint.of_rows(kept), most[kept]))
        if self._best.tokens < 0 or sum(len(most) for _, most in self._waiting) > WAITING:
            self._look()

    def _look(self) -> None:
        """Examine the listed joint backlogs, the most promising first."""
        if not self._waiting:
            return
        tables = [joint for joint, _ in self._waiting]
        most = np.concatenate([most for _, most in self._waiting])
        joint = Joint(*map(np.concatenate, zip(*tables, strict=True)))
        self._waiting.clear()
        order = np.argsort(-most, kind="stable")
        done, count = 0, LOOKS_FIRST
        while done < len(order) and most[order[done]] > self._above:
            some = order[done : done + count]
            self._look_into(joint.of_rows(some[most[some] > self._above]))
            done, count = done + count, LOOKS_AT_ONCE

    def _look_into(self, joint: Joint) -> None:
        ranges = self._inside.ranges(joint, self._above)
        at = int(np.argmax(ranges))
        if ranges[at] > self._best.tokens:
            first, second = sorted((int(joint.first[at]), int(joint.second[at])))
            start_s, end_s = float(joint.start[at]), float(joint.end[at])
            self._best = Gap(float(ranges[at]), first, second, start_s, end_s)
