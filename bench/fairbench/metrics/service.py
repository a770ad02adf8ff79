"""Service of each client over time, exact to the decode step.

A booking falls on an instant: charges on the start of an iteration, computed extend tokens on its
end, output tokens on the end of the step that made them.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.ragged import spread
from fairbench.metrics.records import Floats, Ints, Service, Window
from fairbench.metrics.service_log import ServiceLog


class View(Enum):
    """What is counted. Tokens are weighted in the first three views, raw in the last two."""

    CLIENT = "client"  # w_e * input + w_q * output: what clients see ([DLPM] §6.1)
    ACTUAL = "actual"  # w_e * computed extend + w_q * output: what the cluster did ([DLPM] §3)
    CHARGED = "charged"  # as ACTUAL, the extend booked at admission: what the theorems bound
    OUTPUT = "output"
    EXTEND = "extend"


class Booked(NamedTuple):
    """Tokens of each client that were booked in a window, before any weight.

    ``charged`` is the extend at admission, ``extend`` what was computed of it.
    """

    input: Floats
    charged: Floats
    extend: Floats
    output: Floats

    def seen(self, view: View, weights: ServiceWeights) -> Floats:
        """The service of each client in a view."""
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


def booked_in(log: ServiceLog, window: Window, clients: int) -> Booked:
    """What was booked in the half-open window, for all views at once."""
    total = np.zeros((4, clients))
    if window.length_s == 0:
        return Booked(*total)
    for part in log.parts():
        started = (part.start_s >= window.start_s) & (part.start_s < window.end_s)
        ended = (part.end_s >= window.start_s) & (part.end_s < window.end_s)
        steps = _steps_before(part, window.end_s) - _steps_before(part, window.start_s)
        some = part.output_tokens / part.steps * steps
        output = np.where(steps == part.steps, part.output_tokens, some)
        for sums, tokens in zip(
            total,
            (
                part.input_tokens * started,
                part.extend_charged_tokens * started,
                part.extend_tokens * ended,
                output,
            ),
            strict=True,
        ):
            sums += np.bincount(part.client, weights=tokens, minlength=clients)
    return Booked(*total)


def window_service(
    log: ServiceLog, view: View, window: Window, clients: int, weights: ServiceWeights
) -> Floats:
    """Service of each client booked in the half-open window (tokens, weighted by ``view``)."""
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
    """Service of each client booked before each of the ascending ``times``: [client, time].

    At an instant steps end first, then iterations start. ``with_ends`` and ``with_starts`` also
    count what is booked at the very instant by the ends and by the starts.
    """
    width = len(times) + 1  # what comes after all of them is put there
    cells = np.zeros(clients * width)
    for part in log.parts():
        at_start, at_end, stepwise = amounts(part, view, weights)
        row, place, tokens = _step_bookings(part, stepwise, times, with_ends)
        client = np.concatenate([part.client, part.client, part.client[row]])
        first = np.concatenate(
            [
                np.searchsorted(times, part.start_s, "left" if with_starts else "right"),
                np.searchsorted(times, part.end_s, "left" if with_ends else "right"),
                place,
            ]
        )
        amount = np.concatenate([at_start, at_end, tokens])
        cells += np.bincount(client * width + first, weights=amount, minlength=len(cells))
    booked = np.cumsum(cells.reshape(clients, width), axis=1, dtype=np.float64)
    return booked[:, :-1]


def step_ends(log: Service, rows: Ints) -> tuple[Ints, Floats]:
    """Every step of the given rows: the row it belongs to and the second at which it ends.

    The first step lasts d with ``steps * d + growth * steps * (steps - 1) / 2 = end - start``.
    """
    steps = log.steps[rows]
    row = np.repeat(rows, steps)
    count = log.steps[row]
    number = np.arange(len(row)) - np.repeat(np.cumsum(steps) - steps, steps) + 1
    growth = log.step_growth_s[row]
    start, end = log.start_s[row], log.end_s[row]
    first = (end - start) / count - growth * (count - 1) / 2
    return row, np.where(number == count, end, _step_end(start, first, growth, number))


def amounts(log: Service, view: View, weights: ServiceWeights) -> tuple[Floats, Floats, Floats]:
    """What each row books when it starts, when it ends, and step by step."""
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
    log: Service, stepwise: Floats, times: Floats, inclusive: bool
) -> tuple[Ints, Ints, Floats]:
    """What steps book, put together where no time falls between them.

    The row, the first time by which it is booked (before it, or ``inclusive`` at it), the tokens.
    """
    side: Literal["left", "right"] = "left" if inclusive else "right"
    last = np.searchsorted(times, log.end_s, side)
    low = np.searchsorted(times, log.start_s, "left")
    high = np.searchsorted(times, log.end_s, "right")
    count = np.where(log.steps > 1, np.maximum(0, high - low), 0)
    row, place = spread(low, count)
    done = _steps_by(log, row, times[place], inclusive)
    # Of each row the differences: the first since 0, and what is left when its last time has come.
    since = np.diff(done, prepend=0)
    begin = (np.cumsum(count) - count)[count > 0]
    since[begin] = done[begin]
    left = log.steps.copy()
    left[count > 0] -= done[begin + count[count > 0] - 1]
    each = stepwise / log.steps
    everyone = np.arange(len(log))
    return (
        np.concatenate([everyone, row]),
        np.concatenate([last, place]),
        np.concatenate([np.where(count > 0, left * each, stepwise), since * each[row]]),
    )


def _steps_before(log: Service, at_s: float) -> Ints:
    """How many steps of each row had ended before an instant."""
    steps: Ints = np.where(log.end_s < at_s, log.steps, 0)
    cut = np.flatnonzero((log.start_s < at_s) & (log.end_s >= at_s) & (log.steps > 1))
    steps[cut] = _steps_by(log, cut, np.full(len(cut), at_s), inclusive=False)
    return steps


def _steps_by(log: Service, row: Ints, at_s: Floats, inclusive: bool) -> Ints:
    """How many steps of each of the rows had ended before an instant, or ``inclusive`` at it."""
    steps, growth = log.steps[row], log.step_growth_s[row]
    start, end = log.start_s[row], log.end_s[row]
    first = (end - start) / steps - growth * (steps - 1) / 2
    ended, beyond = np.zeros(len(row), dtype=np.int64), steps + 1
    while np.any(beyond - ended > 1):
        middle = (ended + beyond) // 2
        step_s = np.where(middle == steps, end, _step_end(start, first, growth, middle))
        over = (step_s <= at_s) if inclusive else (step_s < at_s)
        ended, beyond = np.where(over, middle, ended), np.where(over, beyond, middle)
    return ended


def _step_end(start_s: Floats, first_s: Floats, growth_s: Floats, number: Ints) -> Floats:
    """When a step ends that is not the last, the first of which takes ``first_s``."""
    end_s: Floats = start_s + number * first_s + growth_s * number * (number - 1) / 2
    return end_s
