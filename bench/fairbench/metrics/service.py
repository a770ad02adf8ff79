"""The GPU time of clients, and their service over time with the precision of a decode step.

A token is "booked" at the time at which it begins to count as service. Tokens charged at admission
count as service from the start of an iteration on, and computed input tokens from the iteration's
end on. An output token counts as service from the end of its decode step on. A stretch is a period
in which the batch does not change. A log has a row for each client in a stretch, but a stretch's
step times are computed only once.
"""

from __future__ import annotations

from enum import Enum
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fairbench.core import ServiceWeights
from fairbench.metrics.arrays import in_order, ratio, spread
from fairbench.metrics.records import FitLimits, Floats, Ints, Requests, Service, Window
from fairbench.metrics.tables import ServiceRows


class Timed(Protocol):
    """A table whose rows have times and decode steps, such as ``Service`` or ``Stretches``."""

    @property
    def start_s(self) -> Floats: ...

    @property
    def end_s(self) -> Floats: ...

    @property
    def steps(self) -> Ints: ...

    @property
    def step_growth_s(self) -> Floats: ...


class Stretches(NamedTuple):
    """The stretches (periods of an unchanged batch) of a log, in the order of the log.

    ``of_row`` maps each log row to the index of its stretch; ``rows`` counts the rows of each
    stretch.
    """

    start_s: Floats
    end_s: Floats
    steps: Ints
    step_growth_s: Floats
    of_row: Ints
    rows: Ints

    @classmethod
    def of_log(cls, log: Service) -> Stretches:
        """Divide a log into stretches of consecutive rows with equal times.

        The result is cached for as long as the log exists.
        """
        known: Stretches | None = _KNOWN.get(log)
        if known is None:
            known = _KNOWN[log] = cls._found(log)
        return known

    @classmethod
    def _found(cls, log: Service) -> Stretches:
        begins = np.zeros(len(log), dtype=np.bool_)
        begins[:1] = True
        for column in (log.start_s, log.end_s, log.steps, log.step_growth_s):
            begins[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(begins)
        return cls(
            log.start_s[first],
            log.end_s[first],
            log.steps[first],
            log.step_growth_s[first],
            of_row=np.cumsum(begins) - 1,
            rows=np.diff(first, append=len(log)),
        )


_KNOWN: WeakKeyDictionary[Service, Stretches] = WeakKeyDictionary()


def step_times(log: Timed, row: Ints, number: Ints) -> Floats:
    """Return the end time of a step in seconds, given its log row and its number (from 1).

    The first step of a row lasts d seconds, where ``steps * d + growth * steps * (steps - 1) / 2 =
    end - start``.
    """
    steps, growth = log.steps[row], log.step_growth_s[row]
    start, end = log.start_s[row], log.end_s[row]
    first = (end - start) / steps - growth * (steps - 1) / 2
    return np.where(number == steps, end, _step_end(start, first, growth, number))


def steps_before(log: Timed, at_s: float) -> Ints:
    """Return how many steps of each log row ended before the time ``at_s`` (in seconds)."""
    steps: Ints = np.where(log.end_s < at_s, log.steps, 0)
    cut = np.flatnonzero((log.start_s < at_s) & (log.end_s >= at_s) & (log.steps > 1))
    steps[cut] = steps_by(log, cut, np.full(len(cut), at_s), inclusive=False)
    return steps


def steps_by(log: Timed, row: Ints, at_s: Floats, inclusive: bool) -> Ints:
    """Return how many steps of each log row in ``row`` ended before the time ``at_s``.

    With ``inclusive``, the function also counts a step that ends exactly at ``at_s``.
    """
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
    """Return the end (s) of step ``number``; each step is ``growth_s`` longer than the last one."""
    end_s: Floats = start_s + number * first_s + growth_s * number * (number - 1) / 2
    return end_s


# If the uncached tokens computed in a window differ from the uncached tokens admitted in the window
# by more than this fraction, ``Booked.on_one_clock`` counts the admitted tokens.
MOST_UNDER_WAY = 0.1


class View(Enum):
    """Ways to measure service, in plain tokens (OUTPUT and EXTEND) or in weighted tokens.

    In the comments on views, w_e and w_q are the prices of an input token and an output token.
    """

    # Client service counts cached input, too: w_e * input + w_q * output ([DLPM] §6.1).
    CLIENT = "client"
    # Computed service, the work of the cluster, is w_e * computed input + w_q * output ([DLPM] §3).
    ACTUAL = "actual"
    # Charged service is w_e * uncached input + w_q * output. A request's input counts
    # once the request is admitted. The fairness theorems bound the difference in charged service
    # between clients.
    CHARGED = "charged"
    OUTPUT = "output"
    EXTEND = "extend"


class Booked(NamedTuple):
    """Unweighted tokens of each client that count as service in a window.

    ``charged`` counts uncached input tokens at the admission of their request, and ``extend``
    counts uncached input tokens at the end of their prefill. Each array has the shape (n_clients,).
    """

    input: Floats
    charged: Floats
    extend: Floats
    output: Floats

    def seen(self, view: View, weights: ServiceWeights) -> Floats:
        """Return each client's service as the measure ``view`` defines it, shape (n_clients,)."""
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
        """Replace computed tokens by uncached tokens admitted in the window if the counts differ.

        A prompt may be admitted before, and computed after, the start or the end of the window. If
        a client's computed tokens differ from its admitted tokens by more than ``MOST_UNDER_WAY``,
        or exceed its input tokens, the uncached tokens admitted in the window replace the computed
        tokens.
        """
        apart = np.abs(self.extend - self.charged) > MOST_UNDER_WAY * self.charged
        apart |= self.extend > self.input
        return self._replace(extend=np.where(apart, self.charged, self.extend))


def booked_in(log: ServiceRows, window: Window, clients: int) -> Booked:
    """Return the tokens of each client that count as service in the half-open ``window``."""
    total = np.zeros((4, clients))
    if window.length_s == 0:
        return Booked(*total)
    for part in log.parts():
        own = Stretches.of_log(part)
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
            # Rows without prompt tokens are skipped, because few rows of a log are prefill
            # iterations.
            rows = np.flatnonzero(tokens)
            rows = rows[when[own.of_row[rows]]]
            sums += np.bincount(part.client[rows], weights=tokens[rows], minlength=clients)
    return Booked(*total)


def window_service(
    log: ServiceRows, view: View, window: Window, clients: int, weights: ServiceWeights
) -> Floats:
    """Return the service of each client in the half-open window, shape (n_clients,)."""
    return booked_in(log, window, clients).seen(view, weights)


def cumulative(
    log: ServiceRows,
    view: View,
    times: Floats,
    clients: int,
    weights: ServiceWeights,
    *,
    with_starts: bool = False,
    with_ends: bool = False,
) -> Floats:
    """Return the service that each client received before each time, shape (clients, times).

    At equal times, ends of steps are counted before starts of iterations. With ``with_ends``, the
    service before a time includes steps that end at exactly that time. With ``with_starts``, the
    service before a time includes the tokens of iterations that start at exactly that time.
    """
    width = len(times) + 1  # one column per time, and one for bookings after the last time
    cells = np.zeros(clients * width)
    for part in log.parts():
        at_start, at_end, stepwise = booked_tokens(part, view, weights)
        own = Stretches.of_log(part)
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


def booked_tokens(
    log: Service, view: View, weights: ServiceWeights
) -> tuple[Floats, Floats, Floats]:
    """Return the tokens that each log row adds at its start, at its end, and over its steps.

    If ``view`` is weighted, tokens are multiplied by their prices. Each array has the shape
    (n_rows,).
    """
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
    """Return how many tokens the steps of each log row add between consecutive ``times``.

    The returned arrays contain an element for the end of each log row, and then an element for each
    of ``times`` inside a row.

    Returns:
        The index in ``times`` of the first time after the tokens were added; the number of tokens;
        and the log row of each element for a time inside a row.
    """
    side: Literal["left", "right"] = "left" if inclusive else "right"
    last = np.searchsorted(times, log.end_s, side)
    low = np.searchsorted(times, log.start_s, "left")
    high = np.searchsorted(times, log.end_s, "right")
    count = np.where(log.steps > 1, np.maximum(0, high - low), 0)
    stretch, place = spread(low, count)
    done = steps_by(log, stretch, times[place], inclusive)
    # ``since`` counts the steps of a stretch between consecutive ``times``. ``left`` counts the
    # steps of a stretch after the last of the ``times`` inside the stretch.
    since = np.diff(done, prepend=0)
    begin = np.cumsum(count) - count
    cut = count > 0
    since[begin[cut]] = done[begin[cut]]
    left = log.steps.copy()
    left[cut] -= done[(begin + count - 1)[cut]]
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


def one_per_stretch(log: Service) -> Service:
    """Return a log that has one row, for all clients, in each period of an unchanged batch."""
    order = np.lexsort((log.start_s, log.worker))
    worker, start_s = log.worker[order], log.start_s[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (worker[1:] != worker[:-1]) | (start_s[1:] != start_s[:-1])
    return log.take(order[new])


def gpu_time(log: ServiceRows) -> float:
    """Return the total GPU time of a run in seconds, summed over its workers.

    The result is NaN if the composition of iterations is unknown, as on real servers.
    """
    times = [part.gpu_s for part in log.parts()]
    return sum(float("nan") if one is None else float(one.sum()) for one in times)


def gpu_time_of_clients(log: ServiceRows, clients: int) -> Floats:
    """Return each client's GPU time in seconds, shape (n_clients,); NaN if unknown.

    The GPU times of all clients add up to ``gpu_time``.
    """
    total = np.zeros(clients)
    for part in log.parts():
        if (gpu_s := part.gpu_s) is None:
            return np.full(clients, np.nan)
        order, bounds = in_order(part.client, clients)
        mine_s = gpu_s[order]
        total += [mine_s[low:high].sum() for low, high in pairwise(bounds.tolist())]
    return total


WARN_ABOVE = 0.1  # Commands print a warning if ``outside_fit_ratio`` is above ``WARN_ABOVE``.


def outside_fit_ratio(log: ServiceRows, fit: FitLimits | None) -> float:
    """Return the fraction of busy time spent in decode steps outside the profile's fitted range.

    The result is NaN if no worker was busy, or if the range of the profile's fit is unknown.
    """
    if fit is None:
        return float("nan")
    limit = fit.context_tokens or np.inf
    outside_s = total_s = 0.0
    for part in log.parts():
        stretches = one_per_stretch(part)
        context, batch = stretches.context_tokens, stretches.batch_size
        within = np.floor((limit - context) / np.maximum(batch, 1)) + 1
        beyond = 1 - np.clip(within, 0, stretches.steps) / stretches.steps
        outside: Floats = np.where(batch > fit.decode_batch, 1.0, beyond)
        outside[context == 0] = 0.0  # ``FitLimits`` limits only decode iterations.
        busy_s = stretches.end_s - stretches.start_s
        outside_s += float((outside * busy_s).sum())
        total_s += float(busy_s.sum())
    return ratio(outside_s, total_s)


DECODE_STEPS = 16


def service_of(requests: Requests, last_token_s: Floats) -> Service:
    """Return the service log of a live run, estimated from what the clients of the server see.

    The log has a prefill row for each answered request, from its admission to its first token. A
    request's input counts as service from the start of its prefill row on. The uncached input and
    the first output token count as service from the row's end on. A request with at least two
    output tokens has a second row, the decode row, from its first to its last token. The tokens of
    a decode row are divided evenly among at most ``DECODE_STEPS`` steps, because one step per token
    would take gigabytes of memory. The rows are sorted by start time and worker.

    Unlike in the service log of a simulation, rows of one worker overlap in time. In all rows,
    ``context_tokens`` is 0 and ``batch_size`` is 1. The error of a client's service is at most the
    tokens of one step of each of its requests in progress.

    ``last_token_s`` has the time of each request's last received token in seconds; NaN for requests
    that received no token.
    """
    answered = requests.take(~np.isnan(requests.first_token_s))
    several = ~np.isnan(last_token_s) & (requests.output_tokens > 1)
    longer = requests.take(several)
    prefill = _log_rows(
        answered,
        answered.admitted_s,
        answered.first_token_s,
        output_tokens=np.minimum(answered.output_tokens, 1),
        input_tokens=answered.input_tokens,
        extend_tokens=answered.extend_tokens,
    )
    nothing = np.zeros(len(longer), dtype=np.int64)
    decode = _log_rows(
        longer,
        longer.first_token_s,
        last_token_s[several],
        output_tokens=longer.output_tokens - 1,
        input_tokens=nothing,
        extend_tokens=nothing,
    )
    both = {name: np.concatenate([prefill[name], decode[name]]) for name in prefill}
    log = Service.from_columns(both)
    return log.take(np.lexsort((log.worker, log.start_s)))


def _log_rows(
    requests: Requests,
    start_s: Floats,
    end_s: Floats,
    *,
    output_tokens: Ints,
    input_tokens: Ints,
    extend_tokens: Ints,
) -> dict[str, Floats | Ints]:
    count = len(requests)
    return {
        "worker": requests.worker,
        "client": requests.client,
        "start_s": start_s,
        "end_s": end_s,
        "steps": np.clip(output_tokens, 1, DECODE_STEPS),
        "step_growth_s": np.zeros(count),
        "batch_size": np.ones(count),
        "context_tokens": np.zeros(count),
        "input_tokens": input_tokens,
        "extend_charged_tokens": extend_tokens,
        "extend_tokens": extend_tokens,
        "recompute_tokens": np.zeros(count),
        "output_tokens": output_tokens,
    }
