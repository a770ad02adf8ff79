"""Max-min fair shares over time: in sliding windows, and in periods in which clients wait.

If a flood's backlog drains before the run ends, shares over the whole run do not show the flood's
effect. In a sliding window, a client that waits while other clients are served loses share, even if
it is served later. Service counts as due when the client would have received it without waiting for
admission. A large batch that slows all clients equally does not lower any client's share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.arrays import lengths_by
from fairbench.metrics.contention import SHORT_ABOVE, call_times, unqueued
from fairbench.metrics.due import Shortfalls, shortfalls
from fairbench.metrics.fairness import max_min_each
from fairbench.metrics.records import (
    REFUSED,
    Facts,
    Flags,
    Floats,
    Programs,
    Requests,
    Window,
)
from fairbench.metrics.service import View, cumulative
from fairbench.metrics.tables import ServiceRows
from fairbench.metrics.waiting_causes import WaitingCauses

WINDOWS_S = (60.0, 10.0)  # Sliding windows have these lengths in seconds.
CELL_S = 1.0  # Time is divided into cells of one second; sliding windows move by one cell.
# Time cells are longer than ``CELL_S`` if the number of cells times the number of clients would
# otherwise exceed ``MOST_CELLS``.
MOST_CELLS = 400_000

# A client's share in a window counts only if its calls waited for at least half of the window.
LEAST_BACKLOG = 0.5
# A client's share counts only if its fair share is at least four requests of mean size. With a
# smaller fair share, one late request would lower the client's share too much.
LEAST_REQUESTS = 4.0


class WorstWindow(NamedTuple):
    """The window in which a client had the lowest fraction of its fair share.

    ``share``, from 0 to 1, is the fraction of its fair share that ``client`` received. ``heavy`` is
    the client that received most beyond its own fair share, or -1 if no client did.
    ``heavy_share`` is the service of ``heavy`` divided by its fair share, or 0 if no client did.
    ``client`` and ``heavy`` are client indices.
    """

    start_s: float
    end_s: float
    share: float
    client: int
    heavy: int
    heavy_share: float


class Timeline(NamedTuple):
    """A window of a run in short intervals ("cells"), with each client's service and waits.

    Each array has a row for each client. ``times`` are the bounds of the short intervals ("cells")
    in seconds. ``service`` has a column per cell, and the arrays in this list have a column per
    cell bound:

    - ``short`` is the client's shortfall: weighted tokens due before each cell bound but not
      received.
    - ``waited_s`` is the total waiting time (s) of the client's calls before each cell bound.
    - ``lasted_s`` is the total duration (s) of the client's calls before each cell bound.
    - ``refused`` is the number of the client's refused calls before each bound between cells.

    ``request_cost`` is the mean size of each client's requests in weighted tokens.
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
        """The number of short intervals (cells) into which the window is divided."""
        return len(self.times) - 1

    def window_cells(self, length_s: float) -> int:
        """Return how many short intervals (cells) a window of ``length_s`` seconds has."""
        cell_s = float(self.times[-1] - self.times[0]) / self.cells
        return min(self.cells, max(1, round(length_s / cell_s)))

    def window_shares(self, cells: int) -> tuple[Floats, Floats, Flags]:
        """Return service and entitlement by client and window, and whether the client was delayed.

        Each window consists of ``cells`` cells (short intervals). Arrays have the shape (n_clients,
        n_windows). A client's demand in a window is its service in the window plus the tokens due
        but not received at the window's end. Tokens of calls that were refused before the window
        are not due. A client counts as delayed if its calls waited in half of the window's cells
        and for more than 5% of their time. A client also counts as delayed if one of its calls was
        refused in the window.
        """
        total = np.cumsum(np.pad(self.service, ((0, 0), (1, 0))), axis=1)
        service = np.maximum(0.0, _increase_over(total, cells))
        short = self.short.all[:, cells:] - self.short.refused[:, :-cells]
        entitlement = max_min_each(
            service.sum(axis=0), service + np.maximum(0.0, short), self.weights
        )
        waited, lasted = _increase_over(self.waited_s, cells), _increase_over(self.lasted_s, cells)
        backlogged = np.cumsum(
            np.pad(np.diff(self.waited_s) > 0, ((0, 0), (1, 0))), axis=1, dtype=float
        )
        waiting = _increase_over(backlogged, cells) >= LEAST_BACKLOG * cells
        held_up = waiting & (waited > SHORT_ABOVE * lasted) | (
            _increase_over(self.refused, cells) > 0
        )
        return service, entitlement, held_up


def timeline(
    requests: Requests, programs: Programs, log: ServiceRows, facts: Facts, window: Window
) -> Timeline:
    """Divide the window into cells of about a second.

    Precondition: the admission times of all answered requests are known (``with_admissions``).
    """
    clients = len(facts.clients)
    most = max(10, MOST_CELLS // max(1, clients))
    cells = min(most, max(10, int(window.length_s / CELL_S)))
    times = np.linspace(window.start_s, window.end_s, cells + 1)
    booked = cumulative(log, View.CLIENT, times, clients, facts.weights)
    queued, lasting = call_times(requests, facts)
    refused = np.flatnonzero(requests.status == REFUSED)
    columns = len(times) + 1
    refused_at = np.searchsorted(times, requests.arrival_s[refused], "right")
    places = requests.client[refused] * columns + refused_at
    refusals = np.bincount(places, minlength=clients * columns).reshape(clients, columns)
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
        np.cumsum(refusals, axis=1)[:, :-1].astype(np.float64),
        np.divide(costs, count, out=np.zeros(clients), where=count > 0),
        facts.client_weights,
    )


def worst_window(
    line: Timeline, length_s: float, least_requests: float = LEAST_REQUESTS
) -> WorstWindow | None:
    """Return the window with the lowest share of any client, or None if no client is judged.

    A client is judged only in windows in which it was delayed and its fair share was at least
    ``least_requests`` times the mean size of its requests.
    """
    cells = line.window_cells(length_s)
    service, entitlement, held_up = line.window_shares(cells)
    ratio = judged_shares(line, service, entitlement, held_up, least_requests)
    if np.isnan(ratio).all():
        return None
    client, place = np.unravel_index(int(np.nanargmin(ratio)), ratio.shape)
    excess = (service - entitlement)[:, place]
    heavy = int(excess.argmax()) if excess.max() > 0 else -1
    return WorstWindow(
        float(line.times[place]),
        float(line.times[place + cells]),
        float(ratio[client, place]),
        int(client),
        heavy,
        float(service[heavy, place] / entitlement[heavy, place]) if heavy >= 0 else 0.0,
    )


def judged_shares(
    line: Timeline, service: Floats, entitlement: Floats, held_up: Flags, least_requests: float
) -> Floats:
    """Return the share of each client in each window, at most 1; NaN if the client is not judged.

    A client is judged in a window if it was delayed, and if its entitlement was at least
    ``least_requests`` times the mean size of its requests. Arrays have the shape (n_clients,
    n_windows), and amounts are weighted tokens.
    """
    judged = held_up & (entitlement > 0)
    judged &= entitlement >= least_requests * line.request_cost[:, np.newaxis]
    ratio = np.full(service.shape, np.nan)
    np.divide(service, entitlement, out=ratio, where=judged)
    shares: Floats = np.minimum(1.0, ratio)
    return shares


def least_by_client(
    line: Timeline, length_s: float, least_requests: float = LEAST_REQUESTS
) -> Floats:
    """Return each client's lowest share of its entitlement in any window of ``length_s`` seconds.

    A client is judged only in windows in which its fair share was large enough. The fair share must
    be at least ``least_requests`` times the mean size of the client's requests. The result is NaN
    for a client whose fair share was too small in every window.
    """
    ratio = judged_shares(line, *line.window_shares(line.window_cells(length_s)), least_requests)
    none: Flags = np.asarray(np.isnan(ratio).all(axis=1))
    return np.where(none, np.nan, np.nanmin(np.where(none[:, np.newaxis], 1.0, ratio), axis=1))


def backlogged_shares(line: Timeline) -> Floats:
    """Return each client's service while backlogged, divided by its fair share at that time.

    Fair shares are computed separately for each short interval (cell) of the window. Generalised
    processor sharing would guarantee every backlogged client its fair share. A client that never
    waited gets NaN.
    """
    service, entitlement, held_up = line.window_shares(1)
    waiting = held_up & (entitlement > 0)
    got, due = (np.where(waiting, one, 0.0).sum(axis=1) for one in (service, entitlement))
    enough = (due > 0) & (due >= LEAST_REQUESTS * line.request_cost)
    ratio = np.full(len(due), np.nan)
    np.divide(got, due, out=ratio, where=enough)
    shares: Floats = np.minimum(1.0, ratio)
    return shares


def _increase_over(values: Floats, cells: int) -> Floats:
    """Return the increase of each row's values over each window of ``cells`` columns."""
    grown: Floats = values[:, cells:] - values[:, :-cells]
    return grown


def worst_window_rows(line: Timeline, facts: Facts, causes: WaitingCauses) -> list[dict[str, Any]]:
    """Return, for each length in ``WINDOWS_S``, the window with the lowest share, as a row."""
    found = [worst_window(line, length_s) for length_s in WINDOWS_S]
    return [
        {
            "start_s": worst.start_s,
            "end_s": worst.end_s,
            "share": worst.share,
            "client": facts.clients[worst.client].name,
            "heavy_client": facts.clients[worst.heavy].name if worst.heavy >= 0 else None,
            "heavy_share": worst.heavy_share if worst.heavy >= 0 else None,
            "why": causes.row(worst.client, Window(worst.start_s, worst.end_s)),
        }
        for worst in found
        if worst
    ]
