"""Stretches: the common times of a batch's rows in a service log, computed once.

A batch of 64 requests of as many clients is 64 rows, one beside the other, with the same times.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from fairbench.metrics.arrays import spread
from fairbench.metrics.records import Floats, Ints, Service


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


def step_ends(log: Timed, rows: Ints) -> tuple[Ints, Floats]:
    """Return all steps of the given rows: for each, the row and the time at which it ends."""
    place, number = spread(np.ones(len(rows), dtype=np.int64), log.steps[rows])
    row = rows[place]
    return row, step_times(log, row, number)


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
    """Return how many steps of each row had ended before an instant, or at it.

    ``inclusive`` counts steps that end at the instant.
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
    """Return the end of a step that is not the last, if the first takes ``first_s``."""
    end_s: Floats = start_s + number * first_s + growth_s * number * (number - 1) / 2
    return end_s
