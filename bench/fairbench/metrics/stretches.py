"""Stretches: the common times of a batch's rows in a service log, computed once.

A batch of 64 requests of 64 clients is 64 consecutive rows with the same times.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fairbench.metrics.arrays import in_order
from fairbench.metrics.records import Facts, FitLimits, Floats, Ints, Service
from fairbench.metrics.tables import Tables


class Timed(Protocol):
    """Columns with the times of steps: rows of a log, or stretches."""

    @property
    def start_s(self) -> Floats: ...

    @property
    def end_s(self) -> Floats: ...

    @property
    def steps(self) -> Ints: ...

    @property
    def step_growth_s(self) -> Floats: ...


class Stretches(NamedTuple):
    """The stretches of a log in order; ``of_row`` is the stretch of each row."""

    start_s: Floats
    end_s: Floats
    steps: Ints
    step_growth_s: Floats
    of_row: Ints
    rows: Ints

    @classmethod
    def of(cls, log: Service) -> Stretches:
        """Return the stretches of neighbouring rows with equal times.

        The result is computed once per log and cached while the log exists.
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
    """Return the end times of rows' steps, by number from 1.

    The first step lasts d with ``steps * d + growth * steps * (steps - 1) / 2 = end - start``.
    """
    steps, growth = log.steps[row], log.step_growth_s[row]
    start, end = log.start_s[row], log.end_s[row]
    first = (end - start) / steps - growth * (steps - 1) / 2
    return np.where(number == steps, end, _step_end(start, first, growth, number))


def steps_before(log: Timed, at_s: float) -> Ints:
    """Return how many steps of each row had ended before an instant."""
    steps: Ints = np.where(log.end_s < at_s, log.steps, 0)
    cut = np.flatnonzero((log.start_s < at_s) & (log.end_s >= at_s) & (log.steps > 1))
    steps[cut] = steps_by(log, cut, np.full(len(cut), at_s), inclusive=False)
    return steps


def steps_by(log: Timed, row: Ints, at_s: Floats, inclusive: bool) -> Ints:
    """Return how many steps of each row had ended before an instant, or at it if ``inclusive``."""
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
    """Return the end of a step that is not the last, if the first takes ``first_s``."""
    end_s: Floats = start_s + number * first_s + growth_s * number * (number - 1) / 2
    return end_s


def gpu_time(tables: Tables, facts: Facts) -> float:
    """Return the seconds in which workers computed, summed over workers and the run.

    The result is NaN if the composition of iterations is unknown: on real servers, and in older
    records.
    """
    times = [part.gpu_s for part in tables.service.parts()]
    return sum(float("nan") if one is None else float(one.sum()) for one in times)


def gpu_time_of_clients(tables: Tables, facts: Facts) -> Floats:
    """Return each client's part of the GPU time; the parts add up to the whole."""
    clients = len(facts.clients)
    total = np.zeros(clients)
    for part in tables.service.parts():
        if (gpu_s := part.gpu_s) is None:
            return np.full(clients, np.nan)
        order, bounds = in_order(part.client, clients)
        mine_s = gpu_s[order]
        total += [mine_s[low:high].sum() for low, high in pairwise(bounds.tolist())]
    return total


WARN_ABOVE = 0.1


def outside_fit_ratio(tables: Tables, facts: Facts) -> float:
    """Return the busy time in decode steps with larger batches or contexts than the fit.

    The result is NaN if nothing was run, or if the range of the profile's fit is unknown. In a
    stretch whose context grows beyond the limit, only the steps beyond it count.
    """
    if facts.fit is None:
        return float("nan")
    outside_s = total_s = 0.0
    for part in tables.service.parts():
        log = _stretches(part)
        busy_s = log.end_s - log.start_s
        outside_s += float((_outside(log, facts.fit) * busy_s).sum())
        total_s += float(busy_s.sum())
    return outside_s / total_s if total_s else float("nan")


def _outside(log: Service, fit: FitLimits) -> Floats:
    limit = fit.context_tokens or np.inf
    within = np.floor((limit - log.context_tokens) / np.maximum(log.batch_size, 1)) + 1
    beyond = 1 - np.clip(within, 0, log.steps) / log.steps
    outside: Floats = np.where(log.batch_size > fit.decode_batch, 1.0, beyond)
    outside[log.context_tokens == 0] = 0.0  # prefills have no context
    return outside


def _stretches(log: Service) -> Service:
    """Return one row per stretch of a worker's batch, for any number of clients in it."""
    order = np.lexsort((log.start_s, log.worker))
    worker, start_s = log.worker[order], log.start_s[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (worker[1:] != worker[:-1]) | (start_s[1:] != start_s[:-1])
    return log.take(order[new])
