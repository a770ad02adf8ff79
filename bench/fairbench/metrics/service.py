"""Service of each client over time, exact to the decode step.

A booking falls on an instant: charges on the start of an iteration, computed extend tokens on its
end, output tokens on the end of the step that made them.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.records import Floats, Ints, Service, Window
from fairbench.metrics.service_log import ServiceLog


class View(Enum):
    """What is counted. Tokens are weighted in the first three views, raw in the last two."""

    CLIENT = "client"  # w_e * input + w_q * output: what clients see ([DLPM] §6.1)
    ACTUAL = "actual"  # w_e * computed extend + w_q * output: what the cluster did ([DLPM] §3)
    CHARGED = "charged"  # as ACTUAL, the extend booked at admission: what the theorems bound
    OUTPUT = "output"
    EXTEND = "extend"


def window_service(
    log: ServiceLog, view: View, window: Window, clients: int, weights: ServiceWeights
) -> Floats:
    """Service of each client booked in the half-open window (tokens, weighted by ``view``)."""
    if window.length_s == 0:
        return np.zeros(clients)
    before = cumulative(log, view, np.array(window, dtype=np.float64), clients, weights)
    service: Floats = before[:, 1] - before[:, 0]
    return service


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
    booked = np.zeros((clients, len(times)))
    for part in log.parts():
        at_start, at_end, stepwise = amounts(part, view, weights)
        row, step_end_s = _step_bookings(part, times)
        count = np.bincount(row, minlength=len(part))
        booked += _landed(times, clients, part.client, part.start_s, at_start, with_starts)
        booked += _landed(times, clients, part.client, part.end_s, at_end, with_ends)
        amount = stepwise[row] / count[row]
        booked += _landed(times, clients, part.client[row], step_end_s, amount, with_ends)
    return booked


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
    at = start + number * first + growth * number * (number - 1) / 2
    return row, np.where(number == count, end, at)


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


def _step_bookings(log: Service, times: Floats) -> tuple[Ints, Floats]:
    """As ``step_ends``, but a row inside which no time falls is one step: who looks would not see.

    This keeps the work proportional to the rows cut by ``times``, not to all decode steps.
    """
    seen = np.searchsorted(times, log.start_s, "right") < np.searchsorted(times, log.end_s, "right")
    cut = seen & (log.steps > 1)
    whole = np.flatnonzero(~cut)
    row, at = step_ends(log, np.flatnonzero(cut))
    return np.concatenate([whole, row]), np.concatenate([log.end_s[whole], at])


def _landed(
    times: Floats, clients: int, client: Ints, at_s: Floats, amount: Floats, inclusive: bool
) -> Floats:
    """Running sum per client of amounts booked before (``inclusive``: at or before) each time."""
    first = np.searchsorted(times, at_s, "left" if inclusive else "right")
    width = len(times) + 1
    cells = np.bincount(client * width + first, weights=amount, minlength=clients * width)
    landed = np.cumsum(cells.reshape(clients, width), axis=1, dtype=np.float64)
    return landed[:, :-1]
