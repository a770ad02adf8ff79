"""Service of each client over time, exact to the decode step.

A booking has an instant: charges have the start of an iteration, computed extend tokens its end,
and output tokens the end of the step that made them.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.arrays import spread
from fairbench.metrics.records import Floats, Ints, Service, Window
from fairbench.metrics.stretches import Stretches, steps_before, steps_by
from fairbench.metrics.tables import ServiceLog

MOST_UNDER_WAY = 0.1  # largest part of a client's computed tokens at the edges of a window


class View(Enum):
    """The view of service. Tokens are weighted in the first three views, raw in the last two."""

    CLIENT = "client"  # w_e * input + w_q * output: what clients see ([DLPM] §6.1)
    ACTUAL = "actual"  # w_e * computed extend + w_q * output: what the cluster did ([DLPM] §3)
    # w_e * extend booked at admission + w_q * output: the service that theorems bound
    CHARGED = "charged"
    OUTPUT = "output"
    EXTEND = "extend"


class Booked(NamedTuple):
    """Unweighted tokens of each client that were booked in a window.

    ``charged`` is the extend at admission, ``extend`` its computed part.
    """

    input: Floats
    charged: Floats
    extend: Floats
    output: Floats

    def seen(self, view: View, weights: ServiceWeights) -> Floats:
        """Return the service of each client in a view."""
        output = weights.output * self.output
        match view:
            case View.CLIENT:
                return weights.extend * self.input + output
            case View.ACTUAL:
                return weights.extend * self.extend + output
            case View.CHARGED:
                return weights.extend * self.charged + output
            case View.OUTPUT:
                return self.output
            case View.EXTEND:
                return self.extend

    def on_one_clock(self) -> Booked:
        """Book computed tokens at admission, as input is, for clients for whom that matters.

        Prompts that an edge of the window divides have their input on one side of it and their
        computed tokens on the other. Either these are few, or the client's computed tokens become
        those of the prompts admitted in the window. So no client has more computed than input.
        """
        apart = np.abs(self.extend - self.charged) > MOST_UNDER_WAY * self.charged
        apart |= self.extend > self.input
        return self._replace(extend=np.where(apart, self.charged, self.extend))


def booked_in(log: ServiceLog, window: Window, clients: int) -> Booked:
    """Return the service that was booked in the window (without its end), for all views."""
    total = np.zeros((4, clients))
    if window.length_s == 0:
        return Booked(*total)
    for part in log.parts():
        own = Stretches.of(part)
        started, ended = window.holds(own.start_s), window.holds(own.end_s)
        steps = steps_before(own, window.end_s) - steps_before(own, window.start_s)
        some = part.output_tokens / part.steps * steps[own.of_row]
        output = np.where((steps == own.steps)[own.of_row], part.output_tokens, some)
        total[3] += np.bincount(part.client, weights=output, minlength=clients)
        for sums, tokens, when in (
            (total[0], part.input_tokens, started),
            (total[1], part.extend_charged_tokens, started),
            (total[2], part.extend_tokens, ended),
        ):
            rows = np.flatnonzero(tokens)  # few rows: those of prefill iterations
            rows = rows[when[own.of_row[rows]]]
            sums += np.bincount(part.client[rows], weights=tokens[rows], minlength=clients)
    return Booked(*total)


def window_service(
    log: ServiceLog, view: View, window: Window, clients: int, weights: ServiceWeights
) -> Floats:
    """Return the service of each client booked in the half-open window, by ``view``."""
    return booked_in(log, window, clients).seen(view, weights)


def cumulative(
    log: ServiceLog,
    view: View,
    times: Floats,
    clients: int,
    weights: ServiceWeights,
    *,
    with_starts: bool = False,
    with_ends: bool = False,
) -> Floats:
    """Return the service of each client booked before each time, shape (clients, times).

    At one instant, steps end before iterations start. ``with_ends`` and ``with_starts`` also count
    the bookings at the instant itself, by ends and by starts.
    """
    width = len(times) + 1  # later bookings are counted there
    cells = np.zeros(clients * width)
    for part in log.parts():
        at_start, at_end, stepwise = amounts(part, view, weights)
        own = Stretches.of(part)
        place, tokens, again = _step_bookings(own, stepwise, times, with_ends)
        starts, ends = np.flatnonzero(at_start), np.flatnonzero(at_end)
        start = np.searchsorted(times, own.start_s, "left" if with_starts else "right")
        end = np.searchsorted(times, own.end_s, "left" if with_ends else "right")
        some = part.client[np.concatenate([starts, ends])]
        client = np.concatenate([some, part.client, part.client[again]])
        first = np.concatenate([start[own.of_row[starts]], end[own.of_row[ends]], place])
        amount = np.concatenate([at_start[starts], at_end[ends], tokens])
        cells += np.bincount(client * width + first, weights=amount, minlength=len(cells))
    booked = np.cumsum(cells.reshape(clients, width), axis=1, dtype=np.float64)
    return booked[:, :-1]


def amounts(log: Service, view: View, weights: ServiceWeights) -> tuple[Floats, Floats, Floats]:
    """Return the (weighted) tokens that each row books at its start, at its end, and in steps."""
    nothing = np.zeros(len(log))
    output = weights.output * log.output_tokens.astype(np.float64)
    extend = weights.extend * log.extend_tokens.astype(np.float64)
    match view:
        case View.CLIENT:
            return weights.extend * log.input_tokens.astype(np.float64), nothing, output
        case View.ACTUAL:
            return nothing, extend, output
        case View.CHARGED:
            return weights.extend * log.extend_charged_tokens.astype(np.float64), nothing, output
        case View.OUTPUT:
            return nothing, nothing, log.output_tokens.astype(np.float64)
        case View.EXTEND:
            return nothing, log.extend_tokens.astype(np.float64), nothing


def _step_bookings(
    log: Stretches, stepwise: Floats, times: Floats, inclusive: bool
) -> tuple[Ints, Floats, Ints]:
    """Return the bookings of rows' steps, merged if no time falls between them.

    Each booking has its tokens and the first of the times by which it is booked (before the time,
    or ``inclusive`` at it). Each row has one booking, and one more for each time inside the row.
    The latter come last.
    """
    side: Literal["left", "right"] = "left" if inclusive else "right"
    last = np.searchsorted(times, log.end_s, side)
    low = np.searchsorted(times, log.start_s, "left")
    high = np.searchsorted(times, log.end_s, "right")
    count = np.where(log.steps > 1, np.maximum(0, high - low), 0)
    stretch, place = spread(low, count)
    done = steps_by(log, stretch, times[place], inclusive)
    # Differences within each stretch: the first from 0; the remainder follows after its last time.
    since = np.diff(done, prepend=0)
    begin = np.cumsum(count) - count
    cut = count > 0
    since[begin[cut]] = done[begin[cut]]
    left = log.steps.copy()
    left[cut] -= done[(begin + count - 1)[cut]]
    # Only rows of divided stretches differ from their total booking at their end.
    rows = np.flatnonzero(cut[log.of_row])
    own = log.of_row[rows]
    each = stepwise[rows] / log.steps[own]
    in_the_end = stepwise.copy()
    in_the_end[rows] = left[own] * each
    row, entry = spread(begin[own], count[own])
    return (
        np.concatenate([last[log.of_row], place[entry]]),
        np.concatenate([in_the_end, since[entry] * each[row]]),
        rows[row],
    )
