"""Fairness over time: the max-min allocation in sliding windows, and at each moment.

The share of a whole run counts only service still missing at its end, so a flood that drains leaves
no trace in that share. Here a client that waits while others are served loses share in exactly the
windows in which it waited, regardless of later service. Work is due at the pace of the engine
without the waits: a batch that slows all clients equally counts as no client's loss.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fairbench.metrics.arrays import lengths_by
from fairbench.metrics.contention import SHORT_ABOVE, call_times, unqueued
from fairbench.metrics.due_over_time import Shortfalls, shortfalls
from fairbench.metrics.max_min import max_min_each
from fairbench.metrics.records import (
    REFUSED,
    Facts,
    Flags,
    Floats,
    Ints,
    Programs,
    Requests,
    Window,
)
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.tables import ServiceLog

WINDOWS_S = (60.0, 10.0)  # lengths of the sliding windows; the first is the headline
CELL_S = 1.0  # interval between the starts of windows
# cells of all clients together; longer runs with more clients have longer cells
MOST_CELLS = 400_000
# part of a window for which calls must wait: a client that arrived late in it lost nothing
LEAST_BACKLOG = 0.5
# entitlement in requests: a fair scheduler may be one request late, so fewer show too little
LEAST_REQUESTS = 4.0


class WorstWindow(NamedTuple):
    """The window in which a client had the lowest fraction of its fair share.

    ``share`` lies in [0, 1]. ``client`` had this fraction, and ``heavy`` received most beyond its
    own fair share (-1 if no client did). Both are indices.
    """

    start_s: float
    end_s: float
    share: float
    client: int
    heavy: int


class Timeline(NamedTuple):
    """Cells of a window: each client's received, missing and requested service, and its waits.

    ``service`` has a column per cell. The other arrays have one column per bound of a cell:
    weighted tokens due and not received, seconds that calls had waited, and seconds that calls had
    lasted.
    """

    times: Floats
    service: Floats
    short: Shortfalls
    waited_s: Floats
    lasted_s: Floats
    refused: Floats
    request_cost: Floats
    weights: Floats

    @property
    def cells(self) -> int:
        """The number of cells."""
        return len(self.times) - 1

    def window_cells(self, length_s: float) -> int:
        """Return the number of cells of a window of this length, from one to all."""
        cell_s = float(self.times[-1] - self.times[0]) / self.cells
        return min(self.cells, max(1, round(length_s / cell_s)))

    def shares(self, cells: int) -> tuple[Floats, Floats, Flags]:
        """Return service and entitlement in all windows of ``cells``, and delayed clients.

        Each array has the shape (clients, windows). The demand of a window is the service in it
        plus the shortfall at its end; calls that were refused before the window began no longer
        count. A client was delayed if its calls waited for half of the window, or for more than 5%
        of their time, or were refused in it.
        """
        total = np.cumsum(np.pad(self.service, ((0, 0), (1, 0))), axis=1)
        service = np.maximum(0.0, _over(total, cells))
        short = self.short.all[:, cells:] - self.short.refused[:, :-cells]
        entitlement = max_min_each(
            service.sum(axis=0), service + np.maximum(0.0, short), self.weights
        )
        waited, lasted = _over(self.waited_s, cells), _over(self.lasted_s, cells)
        backlogged = np.cumsum(
            np.pad(np.diff(self.waited_s) > 0, ((0, 0), (1, 0))), axis=1, dtype=float
        )
        waiting = _over(backlogged, cells) >= LEAST_BACKLOG * cells
        held_up = waiting & (waited > SHORT_ABOVE * lasted) | (_over(self.refused, cells) > 0)
        return service, entitlement, held_up


def timeline(
    requests: Requests, programs: Programs, log: ServiceLog, facts: Facts, window: Window
) -> Timeline:
    """Cut the window into cells of about a second.

    Unreported admissions must be estimated before (``with_admissions``).
    """
    clients = len(facts.clients)
    most = max(10, MOST_CELLS // max(1, clients))
    cells = min(most, max(10, int(window.length_s / CELL_S)))
    times = np.linspace(window.start_s, window.end_s, cells + 1)
    booked = cumulative(log, View.CLIENT, times, clients, facts.weights)
    queued, lasting = call_times(requests, facts)
    refused = np.flatnonzero(requests.status == REFUSED)
    weights = facts.weights
    cost = weights.extend * requests.input_tokens + weights.output * requests.output_tokens
    served = ~np.isnan(requests.admitted_s)
    count = np.bincount(requests.client[served], minlength=clients)
    costs = np.bincount(requests.client[served], weights=cost[served], minlength=clients)
    return Timeline(
        times,
        np.diff(booked, axis=1),
        shortfalls(requests, programs, facts, times, unqueued),
        lengths_by(*queued, clients, times),
        lengths_by(*lasting, clients, times),
        _counts_by(requests.client[refused], requests.arrival_s[refused], clients, times),
        np.divide(costs, count, out=np.zeros(clients), where=count > 0),
        facts.client_weights,
    )


def worst_window(
    line: Timeline, length_s: float, least_requests: float = LEAST_REQUESTS
) -> WorstWindow | None:
    """Return the window with the lowest share of any client; None if none is judged.

    A client is judged in the windows in which it was delayed and entitled to at least
    ``least_requests`` requests of its mean size.
    """
    cells = line.window_cells(length_s)
    service, entitlement, held_up = line.shares(cells)
    ratio = judged_shares(line, service, entitlement, held_up, least_requests)
    if np.isnan(ratio).all():
        return None
    client, place = np.unravel_index(int(np.nanargmin(ratio)), ratio.shape)
    excess = (service - entitlement)[:, place]
    heavy = int(excess.argmax())
    return WorstWindow(
        float(line.times[place]),
        float(line.times[place + cells]),
        float(ratio[client, place]),
        int(client),
        heavy if excess[heavy] > 0 else -1,
    )


def judged_shares(
    line: Timeline, service: Floats, entitlement: Floats, held_up: Flags, least_requests: float
) -> Floats:
    """Return the share of each client in each window, at most 1; NaN if it is not judged.

    Arrays have the shape (n_clients, n_windows), and amounts are weighted tokens.
    """
    judged = held_up & (entitlement > 0)
    judged &= entitlement >= least_requests * line.request_cost[:, np.newaxis]
    ratio = np.full(service.shape, np.nan)
    np.divide(service, entitlement, out=ratio, where=judged)
    shares: Floats = np.minimum(1.0, ratio)
    return shares


def least_by_client(line: Timeline, length_s: float) -> Floats:
    """Return the share of each client in its worst window; NaN if it is not judged."""
    ratio = judged_shares(line, *line.shares(line.window_cells(length_s)), LEAST_REQUESTS)
    none: Flags = np.asarray(np.isnan(ratio).all(axis=1))
    return np.where(none, np.nan, np.nanmin(np.where(none[:, np.newaxis], 1.0, ratio), axis=1))


def backlogged_shares(line: Timeline) -> Floats:
    """Return each client's service while backlogged over its fair share of that time.

    In each cell the service is divided again between the clients, with each client's current
    shortfall as its demand: this is the service that generalised processor sharing guarantees a
    backlogged client. The share of a client that never waited is NaN.
    """
    service, entitlement, held_up = line.shares(1)
    # From a cell in which calls wait to the cell in which they are admitted and booked.
    waiting = held_up & (entitlement > 0)
    got, due = (np.where(waiting, one, 0.0).sum(axis=1) for one in (service, entitlement))
    enough = (due > 0) & (due >= LEAST_REQUESTS * line.request_cost)
    ratio = np.full(len(due), np.nan)
    np.divide(got, due, out=ratio, where=enough)
    shares: Floats = np.minimum(1.0, ratio)
    return shares


def _over(values: Floats, cells: int) -> Floats:
    """Return the increase of each row over every window of ``cells``."""
    grown: Floats = values[:, cells:] - values[:, :-cells]
    return grown


def _counts_by(client: Ints, at_s: Floats, clients: int, times: Floats) -> Floats:
    """Return how many events each client had before each time."""
    width = len(times) + 1
    place = client * width + np.searchsorted(times, at_s, "right")
    counts = np.bincount(place, minlength=clients * width).reshape(clients, width)
    found: Floats = np.cumsum(counts, axis=1)[:, :-1].astype(np.float64)
    return found
