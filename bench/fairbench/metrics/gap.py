"""The largest difference in service between two clients while both wait at every worker.

[DLPM] Theorems 4.1 and 5.1 and [VTC] Theorem 4.4 bound the difference in service between two
waiting clients. Input counts as service at admission, and recomputed tokens do not count. A booking
is a number of tokens that counts as a client's service from one instant on.

The search for the largest gap divides time into short cells (``Cells``). The service of two clients
at a cell's start and end bounds their difference in service within the cell (``Pairs``). Only cells
that may contain the largest difference are examined at every instant at which a client's service
grows (``Inside``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import in_order, portions, spread
from fairbench.metrics.records import Facts, Flags, Floats, Ints, Service
from fairbench.metrics.service import (
    Stretches,
    View,
    booked_tokens,
    cumulative,
    step_times,
    steps_by,
)
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting import Backlog, Overlaps

LEAST_CELLS = 16  # least number of time cells in the search for the largest service gap
FEW = 16  # If a run has at most this number of clients, every pair of clients is examined.
MANY_CELLS = 2**13  # maximum number of time cells in the search if a run has few clients


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Short time intervals (cells) between the times ``edge_s``, and each client's service.

    A cell from time a to time b contains the tokens of engine iterations that end in (a, b], and
    the tokens of iterations that start in [a, b).

    - ``tokens`` is each client's service up to each time in ``edge_s``, shape (n_clients, n_edges).
    - ``service`` is ``tokens`` divided by the client's weight, shape (n_clients, n_edges).
    - ``waits`` marks the cells in which a client was backlogged at some instant. ``begins`` marks
      the cells in which a backlog began. The flags ``waits`` and ``begins`` have the shape (number
      of cells, number of clients).
    """

    edge_s: Floats
    tokens: Floats
    service: Floats
    waits: Flags
    begins: Flags

    def __len__(self) -> int:
        return len(self.edge_s) - 1

    def cells_of_ends(self, at_s: Floats) -> Ints:
        """Return the index of the cell (time interval) of each iteration end in ``at_s``."""
        cells: Ints = np.searchsorted(self.edge_s, at_s, "left") - 1
        return cells

    def cells_of_starts(self, at_s: Floats) -> Ints:
        """Return the index of the time interval that contains each iteration start in ``at_s``."""
        cells: Ints = np.searchsorted(self.edge_s, at_s, "right") - 1
        return cells

    def service_at(self, client: Ints, edge: Ints) -> Floats:
        """Return the service, divided by weight, of each ``client`` up to time ``edge_s[edge]``."""
        service: Floats = self.service.ravel().take(client * len(self.edge_s) + edge)
        return service

    def ahead(self) -> Floats:
        """Return upper bounds on each client's lead over the mean service since its wait began.

        The result has the shape (n_cells, n_clients). A client's bound is minus infinity in time
        intervals (cells) in which the client does not wait.
        """
        return self._risen(*self._deviation())

    def behind(self) -> Floats:
        """Return upper bounds on each client's lag behind the mean service since its wait began.

        The result has the shape (n_cells, n_clients). A bound is minus infinity if the client does
        not wait in the cell.
        """
        low, high = self._deviation()
        return self._risen(-high, -low)

    def _deviation(self) -> tuple[Floats, Floats]:
        """Return lower and upper bounds on (client's service - mean service) in each time cell."""
        # Means are rounded down to whole tokens, because sums of whole numbers are exact.
        service = np.ascontiguousarray(self.service.T)
        gained = np.where(self.waits, np.diff(service, axis=0), 0.0).sum(axis=1)
        average = np.floor(np.cumsum(gained / np.maximum(1, self.waits.sum(axis=1))))
        before = np.concatenate([[0.0], average[:-1]])
        return service[:-1] - average[:, np.newaxis], service[1:] - before[:, np.newaxis]

    def _risen(self, low: Floats, high: Floats) -> Floats:
        """Bound from above how much a value in [``low``, ``high``] has grown since a wait began."""
        low = np.where(self.waits, low, np.inf)
        begins_anew = self.begins | ~self.waits
        least = np.full(low.shape[1], np.inf)
        since = np.empty_like(low)
        for cell, here in enumerate(low):
            np.minimum(least, here, out=least)
            since[cell] = least
            np.copyto(least, here, where=begins_anew[cell])
        return np.where(self.waits, high - since, -np.inf)


def divided(log: ServiceRows, view: View, backlog: Backlog, facts: Facts) -> Cells:
    """Divide the run into time cells with about equally many log rows.

    An array with an element per time cell and client is no larger than the log. With more than
    ``FEW`` clients, the number of time cells is also at most four times the square root of the
    number of log rows.
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


def _edges(log: ServiceRows, backlog: Backlog, cells: int) -> Floats:
    """Return the bounds of time intervals: mostly ends of log rows while several clients wait."""
    ends = [np.empty(0)]
    for part in log.parts():
        own = Stretches.of_log(part)
        several = backlog.depth(own.end_s) > 1
        ends.append(np.repeat(own.end_s[several], own.rows[several]))
    shared = np.sort(np.concatenate(ends))
    if len(shared):
        shared = shared[np.linspace(0, len(shared) - 1, cells + 1).astype(np.int64)]
    before = np.nextafter(backlog.start.min(), -np.inf)
    return np.unique(np.concatenate([[before], shared, [backlog.end.max()]]))


# Service grows only at the starts and ends of iterations. At equal times, ends are sorted before
# starts.
END, START = 0, 1
BOOKINGS_AT_ONCE = 2**20


class Places(NamedTuple):
    """Pairs of a client and a time interval (cell), both by index; one array element per pair."""

    client: Ints
    cell: Ints


class Bookings(NamedTuple):
    """The bookings of service: an array element for each instant at which a client's service grows.

    ``place`` is the index in ``Places`` of a booking's client and time interval (cell). ``at_s`` is
    the instant in seconds, and ``kind`` tells whether an iteration ends (END) or starts (START).
    """

    place: Ints
    at_s: Floats
    kind: Ints
    tokens: Floats


class _Part(NamedTuple):
    """A part of the log, without the time intervals (cells) in which fewer than two clients wait.

    ``rows`` are the rows kept from ``begin`` to ``after - 1``, sorted by client. The pair of a
    client and a time cell has the number client * n_cells + cell. ``first`` is the number of the
    lowest pair to which a row may add service. ``reach`` is the number of the highest pair to which
    the row or an earlier row may add service.
    """

    begin: int
    after: int
    rows: Ints
    first: Ints
    reach: Ints

    @classmethod
    def of_part(cls, part: Service, begin: int, cells: Cells, clients: int) -> _Part:
        own = Stretches.of_log(part)
        final = len(cells) - 1
        first = np.clip(cells.cells_of_starts(own.start_s), 0, final)
        last = np.clip(cells.cells_of_ends(own.end_s), first, final)
        # ``shared[i]`` is the number of cells (short time intervals) before cell i in which at
        # least two clients wait.
        shared = np.append(0, np.cumsum(cells.waits.sum(axis=1) > 1))
        touching = np.flatnonzero((shared[last + 1] > shared[first])[own.of_row])
        if np.any(own.start_s[1:] < own.start_s[:-1]):
            touching = touching[np.argsort(part.start_s[touching], kind="stable")]
        rows = touching[in_order(part.client[touching], clients)[0]]
        before = part.client[rows] * len(cells)
        # Row and pair numbers are stored as small integers, because all parts of the log stay in
        # memory.
        small = np.min_scalar_type(-max(len(part), clients * len(cells)))
        stretch = own.of_row[rows]
        return cls(
            *(begin, begin + len(part), rows.astype(small)),
            (before + first[stretch]).astype(small),
            np.maximum.accumulate(before + last[stretch]).astype(small),
        )

    def touching(self, places: Places, cells: Cells) -> tuple[Ints, Ints]:
        """Find log rows that may add service to each client and time interval in ``places``."""
        wanted = (places.client * len(cells) + places.cell).astype(self.first.dtype)
        low = np.searchsorted(self.reach, wanted, "left")
        high = np.searchsorted(self.first, wanted, "right")
        return spread(low, np.maximum(0, high - low))


class BookingsByCell:
    """An index of the instants in each time interval (cell) at which a client's service grows."""

    def __init__(self, log: ServiceRows, view: View, cells: Cells, facts: Facts) -> None:
        self._log, self._view, self._cells, self._weights = log, view, cells, facts.weights
        self._parts: list[_Part] = []
        for part in log.parts():
            begin = self._parts[-1].after if self._parts else 0
            self._parts.append(_Part.of_part(part, begin, cells, len(facts.clients)))

    def portions(self, *places: Places) -> Iterator[slice]:
        """Yield slices of ``places`` that are small enough to process in memory."""
        booked = np.zeros(len(places[0].cell), dtype=np.int64)
        for part in self._parts:
            steps = self._log.between(part.begin, part.after).steps
            for some in places:
                place, at = part.touching(some, self._cells)
                count = np.bincount(place, 1 + steps[part.rows[at]], minlength=len(booked))
                booked += count.astype(np.int64)
        return portions(booked, BOOKINGS_AT_ONCE)

    def in_places(self, places: Places) -> Bookings:
        """Return the times and amounts of service growth for each (client, time interval) pair."""
        nothing = np.empty(0, dtype=np.int64)
        found = [Bookings(nothing, np.empty(0), nothing, np.empty(0))]
        for part in self._parts:
            place, at = part.touching(places, self._cells)
            if len(at):
                rows = self._log.between(part.begin, part.after).take(part.rows[at])
                found += self._of_rows(rows, place, places.cell[place])
        return Bookings(*map(np.concatenate, zip(*found, strict=True)))

    def _of_rows(self, log: Service, place: Ints, cell: Ints) -> Iterator[Bookings]:
        """Yield the service added at the start of log rows, then the service added by each step."""
        at_start, _, stepwise = booked_tokens(log, self._view, self._weights)
        own = np.flatnonzero((self._cells.cells_of_starts(log.start_s) == cell) & (at_start > 0))
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


CELLS_AT_ONCE = 2**18  # maximum number of cells that are in memory at the same time


class Joint(NamedTuple):
    """A table of intervals in which two clients both wait, with one row per interval.

    Clients ``first`` and ``second`` (indices) wait together. ``start`` and ``end`` are the bounds
    of the interval in seconds, and ``low`` and ``high`` are the indices of the interval's first and
    last cells.
    """

    first: Ints
    second: Ints
    start: Floats
    end: Floats
    low: Ints
    high: Ints

    def take(self, rows: slice | Ints) -> Joint:
        """Return a table of the rows with the given numbers."""
        return Joint._make(column[rows] for column in self)


class Pairs:
    """The pairs of clients that wait at the same time, and bounds on leads in service.

    ``promise`` is, for each interval in which a client waits, an upper bound on how far the client
    can get ahead of any other client in the interval.
    """

    def __init__(self, cells: Cells, backlog: Backlog) -> None:
        self._cells, self._backlog, self._overlaps = cells, backlog, Overlaps(backlog)
        self._low, self._high = cells.cells_of_ends(backlog.start), cells.cells_of_ends(backlog.end)
        self._clients = np.arange(cells.waits.shape[1])
        client = backlog.client
        # A client's lead over another client grows at most by the client's own service.
        self.promise = cells.service_at(client, self._high + 1) - cells.service_at(
            client, self._low
        )
        if len(self._clients) > FEW:
            self._ahead, self._behind = cells.ahead(), cells.behind()
            self._furthest = self._behind.max(axis=1)
            # ``reach`` has upper bounds on the difference between each client's service and the
            # lowest service of any client.
            reach = (self._ahead + self._furthest[:, np.newaxis]).T.ravel()
            begin = client * len(cells)
            bounds = np.column_stack([begin + self._low, begin + self._high + 1]).ravel()
            reached = np.maximum.reduceat(np.append(reach, -np.inf), bounds)[::2]
            self.promise = np.minimum(self.promise, reached)

    def rivals(self, row: int, above: float) -> Ints:
        """Return the clients that may be more than ``above`` in service behind ``row``'s client."""
        client, cells = self._backlog.client[row], slice(self._low[row], self._high[row] + 1)
        if len(self._clients) <= FEW:
            return np.flatnonzero(self._clients != client)
        ahead = self._ahead[cells, client]
        hot = np.flatnonzero(ahead + self._furthest[cells] > above)
        apart = (self._behind[cells][hot] + ahead[hot, np.newaxis]).max(axis=0, initial=-np.inf)
        apart[client] = -np.inf
        return np.flatnonzero(apart > above)

    def joint(self, row: Ints, rival: Ints, above: float) -> Joint:
        """Return the intervals in which both the client of each ``row`` and ``rival`` wait.

        The result omits intervals in which the client of ``row`` receives at most ``above`` tokens.
        """
        place, other = self._overlaps.found(self._backlog, row, rival)
        own, backlog = row[place], self._backlog
        client = backlog.client[own]
        low = np.maximum(self._low[own], self._low[other])
        high = np.minimum(self._high[own], self._high[other])
        gained = self._cells.service_at(client, high + 1) - self._cells.service_at(client, low)
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


def gap_bounds(cells: Cells, joint: Joint) -> tuple[Floats, Floats]:
    """Return lower and upper bounds on the service gap in each interval of joint waiting."""
    least, most = [np.empty(0)], [np.empty(0)]
    for some in portions(joint.high + 1 - joint.low, CELLS_AT_ONCE):
        here = joint.take(some)
        states = Differences.of_joint(cells, here)
        least.append(states.at_least)
        most.append(states.at_most)
    return np.concatenate(least), np.concatenate(most)


class Differences(NamedTuple):
    """Bounds on the service difference of two clients during the time in which both clients wait.

    Each array has an element per time cell (short period) of each interval in which both clients
    wait. ``row`` is the row of the cell's interval in a ``Joint`` table. ``begin`` contains the
    index of each interval's first element. The service difference in a cell lies between ``least``
    and ``most``. ``edge`` is the service difference at the start of a time cell, or NaN for an
    interval's first cell.
    """

    row: Ints
    cell: Ints
    begin: Ints
    least: Floats
    most: Floats
    edge: Floats

    @classmethod
    def of_joint(cls, cells: Cells, joint: Joint) -> Differences:
        """Return bounds on two clients' service difference in each time cell of ``joint``."""
        count = joint.high + 1 - joint.low
        row, cell = spread(joint.low, count)
        first, second = joint.first[row], joint.second[row]
        mine, theirs = cells.service_at(first, cell), cells.service_at(second, cell)
        least = mine - cells.service_at(second, cell + 1)
        most = cells.service_at(first, cell + 1) - theirs
        edge = np.where(cell == joint.low[row], np.nan, mine - theirs)
        return cls(row, cell, np.cumsum(count) - count, least, most, edge)

    @property
    def lowest(self) -> Floats:
        """A lower bound on the service difference in each interval in which both clients wait."""
        found: Floats = np.minimum.reduceat(self.least, self.begin)
        return found

    @property
    def highest(self) -> Floats:
        """An upper bound on the service difference in each interval in which both clients wait."""
        found: Floats = np.maximum.reduceat(self.most, self.begin)
        return found

    @property
    def at_most(self) -> Floats:
        """An upper bound on the change of two clients' service difference in each interval."""
        return self.highest - self.lowest

    @property
    def at_least(self) -> Floats:
        """A lower bound on the change of two clients' service difference in each interval."""
        high = np.fmax.reduceat(self.edge, self.begin)
        found: Floats = np.nan_to_num(high - np.fmin.reduceat(self.edge, self.begin))
        return found


ROUNDING = 1e-9  # Sums of tokens that differ by less than this fraction count as equal.


class Inside:
    """The possible extremes of the service difference between two clients."""

    def __init__(self, log: ServiceRows, view: View, cells: Cells, facts: Facts) -> None:
        self._cells, self._weights = cells, facts.client_weights
        self._bookings = BookingsByCell(log, view, cells, facts)

    def ranges(self, joint: Joint, above: float) -> Floats:
        """Return the change in two clients' service difference within each interval of ``joint``.

        The largest change in the difference is exact if it exceeds ``above``; smaller changes may
        be underestimated.
        """
        parts = portions(joint.high + 1 - joint.low, CELLS_AT_ONCE)
        return np.concatenate([self._ranges(joint.take(some), above) for some in parts])

    def _ranges(self, joint: Joint, above: float) -> Floats:
        high, low = np.full(len(joint.start), -np.inf), np.full(len(joint.start), np.inf)
        row, cell = self._wanted(joint, above)
        first, second = Places(joint.first[row], cell), Places(joint.second[row], cell)
        for some in self._bookings.portions(first, second):
            own, difference = self._differences(joint, row[some], cell[some])
            np.maximum.at(high, own, difference)
            np.minimum.at(low, own, difference)
        ranges: Floats = high - low
        return ranges

    def _wanted(self, joint: Joint, above: float) -> tuple[Ints, Ints]:
        """Return intervals, and short periods within them, in which a gap may exceed ``above``."""
        states = Differences.of_joint(self._cells, joint)
        above = max(above, float(states.at_least.max(initial=0.0)) * (1 - ROUNDING))
        row, cell = states.row, states.cell
        wanted = states.most - states.lowest[row] > above
        wanted |= states.highest[row] - states.least > above
        wanted |= (cell == joint.low[row]) | (cell == joint.high[row])
        return row[wanted], cell[wanted]

    def _differences(self, joint: Joint, row: Ints, cell: Ints) -> tuple[Ints, Floats]:
        """Return two clients' service difference at all instants at which it may be extreme."""
        one = self._bookings.in_places(Places(joint.first[row], cell))
        two = self._bookings.in_places(Places(joint.second[row], cell))
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
        # If several bookings of two clients are of one kind and at one time, only the difference
        # after the last of these bookings counts.
        settled = np.ones(len(order), dtype=np.bool_)
        settled[:-1] = (place[1:] != place[:-1]) | (at_s[1:] != at_s[:-1]) | (kind[1:] != kind[:-1])
        begun = at_s >= joint.start[own]
        over = (at_s > joint.end[own]) | ((at_s == joint.end[own]) & (kind != END))
        kept = settled & begun & ~over
        return own[kept], (ours - theirs)[kept]

    def _service(self, client: Ints, cell: Ints, place: Ints, tokens: Floats) -> Floats:
        total = np.cumsum(tokens)
        begin = np.flatnonzero(np.diff(place, prepend=-1))
        before = np.repeat((total - tokens)[begin], np.diff(begin, append=len(place)))
        since = total - before
        service: Floats = (self._cells.tokens[client, cell] + since) / self._weights[client]
        return service


PAIRS_AT_ONCE = 2**16  # maximum number of client pairs for which one step computes bounds
MOST_LISTED = 2**18
# The search first examines 8 intervals in which two clients wait, and then 4,096 at a time.
EXAMINED_FIRST, EXAMINED_AT_ONCE = 8, 2**12


class Gap(NamedTuple):
    """The largest service gap of a run, with its two clients and the time for which both waited.

    ``first`` and ``second`` are client indices, and ``tokens`` is the difference in weighted tokens
    divided by weight. The clients ``first`` and ``second`` both waited from ``start_s`` to
    ``end_s``.
    """

    tokens: float
    first: int
    second: int
    start_s: float
    end_s: float


def max_service_gap(backlog: Backlog, log: ServiceRows, facts: Facts) -> Gap:
    """Return the largest service gap between any two clients while both of them wait.

    The gap of clients f and g is the largest |W_f(t1, t2)/w_f - W_g(t1, t2)/w_g| for two times t1
    and t2 in an interval in which both wait. W_f(t1, t2) is the service of client f between the two
    times in weighted tokens, and w_f is its weight. If the two clients wait from a to e, the gap
    covers iterations' starts in [a, e) and ends in (a, e]. At one instant, an iteration ends, then
    requests arrive, and then an iteration admits requests. Service is measured in the ``View`` of
    the theorem that bounds the gap, by default in ``View.CHARGED``. Precondition:
    ``backlog.shared`` (in an interval, two clients always had a request waiting on every worker).
    """
    view = View.CLIENT if facts.bound and facts.bound.view == "client" else View.CHARGED
    return _Search(backlog, log, view, facts).largest()


class _Search:
    """A branch-and-bound search for the largest service gap, from likely leaders downward.

    The service gap between two clients is at most one client's lead over the mean service plus the
    other client's lag behind the mean. The gap never exceeds the service of the leading client
    during the time in which both clients wait.
    """

    def __init__(self, backlog: Backlog, log: ServiceRows, view: View, facts: Facts) -> None:
        self._cells = divided(log, view, backlog, facts)
        self._pairs = Pairs(self._cells, backlog)
        self._inside = Inside(log, view, self._cells, facts)
        self._known = -1.0  # proved lower bound on the largest service gap, in tokens
        # ``_best`` is the largest service gap found so far.
        self._best = Gap(-1.0, 0, 0, 0.0, 0.0)

        # ``_listed`` holds intervals that are still to be examined, with bounds on their gaps.
        self._listed: list[tuple[Joint, Floats]] = []

    @property
    def _above(self) -> float:
        """The largest gap known so far, in tokens; only larger gaps are searched for."""
        return max(self._known, self._best.tokens)

    def largest(self) -> Gap:
        promise, limit = self._pairs.promise, 1
        rows: list[int] = []
        rivals: list[Ints] = []
        for row in np.argsort(-promise, kind="stable").tolist():
            if promise[row] <= self._above:
                break
            rows.append(row)
            rivals.append(self._pairs.rivals(row, self._above))
            if sum(map(len, rivals)) >= limit:
                self._list_joint_backlogs(rows, rivals)
                rows, rivals = [], []
                limit = min(8 * limit, PAIRS_AT_ONCE)
        self._list_joint_backlogs(rows, rivals)
        self._examine_listed()
        return self._best

    def _list_joint_backlogs(self, rows: list[int], rivals: list[Ints]) -> None:
        if not rows:
            return
        row = np.repeat(rows, [len(some) for some in rivals])
        joint = self._pairs.joint(row, np.concatenate(rivals), self._above)
        least, most = gap_bounds(self._cells, joint)
        if (at_least := float(least.max(initial=0.0))) > 0:
            self._known = max(self._known, at_least * (1 - ROUNDING))
        kept = np.flatnonzero(most > self._above)
        self._listed.append((joint.take(kept), most[kept]))
        if self._best.tokens < 0 or sum(len(most) for _, most in self._listed) > MOST_LISTED:
            self._examine_listed()

    def _examine_listed(self) -> None:
        if not self._listed:
            return
        tables = [joint for joint, _ in self._listed]
        most = np.concatenate([most for _, most in self._listed])
        joint = Joint(*map(np.concatenate, zip(*tables, strict=True)))
        self._listed.clear()
        order = np.argsort(-most, kind="stable")
        done, count = 0, EXAMINED_FIRST
        while done < len(order) and most[order[done]] > self._above:
            some = order[done : done + count]
            examined = joint.take(some[most[some] > self._above])
            ranges = self._inside.ranges(examined, self._above)
            at = int(np.argmax(ranges))
            if ranges[at] > self._best.tokens:
                first, second = sorted((int(examined.first[at]), int(examined.second[at])))
                start_s, end_s = float(examined.start[at]), float(examined.end[at])
                self._best = Gap(float(ranges[at]), first, second, start_s, end_s)
            done, count = done + count, EXAMINED_AT_ONCE
