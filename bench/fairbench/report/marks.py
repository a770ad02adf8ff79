"""Marks: the best and the worst of several values, if the difference is significant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

from fairbench.metrics.catalogue import metric_of
from fairbench.metrics.metric import Better, Column
from fairbench.results.comparison import SchedulerResults
from fairbench.results.intervals import Decision, difference, log_ratio, mean_value
from fairbench.results.summary import Value, value_of

BEST, WORST, NEITHER = "*", "!", " "

Interval = Mapping[str, Any]
"""A metric over several runs: the dictionary that ``intervals.combine`` returns."""

Sample = Mapping[int, Value]
"""A metric's value for each seed."""


def cell_marks(
    cells: Sequence[SchedulerResults], columns: Sequence[Column]
) -> list[tuple[str, ...]]:
    """Return, for each cell, a mark per column; ``NEITHER`` where no difference is significant.

    One seed shows no significant difference, unless a trace is replayed in the simulator, which is
    exact. A metric without a better direction has neither a best nor a worst value.
    """
    if not can_tell(cells):
        return [(NEITHER,) * len(columns)] * len(cells)
    return list(zip(*(_of_column(cells, column) for column in columns), strict=True))


def _of_column(cells: Sequence[SchedulerResults], column: Column) -> list[str]:
    entry = metric_of(column.key)
    if entry is not None and not entry.verdict:
        return [NEITHER] * len(cells)
    samples = [
        {one.summary["seed"]: value_of(one.summary, column.key) for one in cell.runs}
        for cell in cells
    ]
    return marks_of(samples, column.better, in_seconds=entry is not None and entry.unit == "s")


def can_tell(cells: Iterable[SchedulerResults]) -> bool:
    """Return whether differences can be significant: with several seeds or an exact replay."""
    return any(
        len(cell.runs) > 1 or (cell.combined["simulated"] and cell.combined.get("trace"))
        for cell in cells
    )


def marks_of(samples: Sequence[Sample], better: Better, *, in_seconds: bool = False) -> list[str]:
    """Return ``BEST``, ``WORST`` or ``NEITHER`` for each sample.

    A sample is best or worst if it differs significantly from every other sample: over several
    seeds, by the interval of the paired differences; with one seed, by the values. Times
    (``in_seconds``) are compared by their logarithms, as in `compare`. Values that agree in three
    digits count as equal. If all samples are equal, no sample is marked. Samples whose values are
    unlimited lower bounds share the mark of the worst.
    """
    if better is Better.NEITHER:
        return [NEITHER] * len(samples)
    known = [any(value.raw is not None for value in sample.values()) for sample in samples]
    defined = [sample for sample, there in zip(samples, known, strict=True) if there]
    not_worse = partial(_not_worse, better=better, in_seconds=in_seconds)
    marks = iter([_mark(defined, row, not_worse) for row in range(len(defined))])
    return [next(marks) if there else NEITHER for there in known]


def _mark(samples: Sequence[Sample], row: int, not_worse: Callable[[Sample, Sample], bool]) -> str:
    own = samples[row]
    others = [one for number, one in enumerate(samples) if number != row]
    best = all(not_worse(own, other) for other in others)
    worst = all(
        not_worse(other, own) or (_unlimited(own) and _unlimited(other)) for other in others
    )
    return NEITHER if best == worst else BEST if best else WORST


def _not_worse(one: Sample, other: Sample, better: Better, *, in_seconds: bool) -> bool:
    """Return whether the first sample is significantly at least as good as the other."""
    seeds = sorted(one.keys() & other.keys())
    if len(one.keys() | other.keys()) == 1:
        return _badness(one, better)[1] <= _badness(other, better)[0]
    mine, theirs = ([side[seed] for seed in seeds] for side in (one, other))
    found = log_ratio(theirs, mine) if in_seconds else None
    found = found or difference(theirs, mine)
    exact = found.runs > 1 and not (found.bounded or found.undefined)
    if exact and _digits(mine) == _digits(theirs):
        return True
    return found.decision(better) in (Decision.BETTER, Decision.SAME)


def _digits(values: Sequence[Value]) -> str:
    return f"{mean_value(values).raw:.3g}"


def _badness(sample: Sample, better: Better) -> tuple[float, float]:
    """Return the ends of the sample's range, with a sign such that larger numbers are worse."""
    (value,) = sample.values()
    turned = float(f"{value.raw:.3g}") * (-1 if better is Better.MORE else 1)
    return -inf if value.bound == "<" else turned, inf if value.bound == ">" else turned


def _unlimited(sample: Sample) -> bool:
    """Return whether the value may be arbitrarily bad."""
    return any(value.bound == ">" for value in sample.values())
