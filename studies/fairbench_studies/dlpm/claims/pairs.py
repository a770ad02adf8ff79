"""Pairs of schedulers in one configuration, compared by seed, to judge a claim.

A claim holds in a configuration if the 95% interval of the difference, paired by seed, lies wholly
on the claim's side of the value at which its sign flips. The claim is reversed if the interval lies
on the other side, and otherwise inconclusive. With a single seed, which gives no interval, the
difference alone decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import exp, log
from typing import NamedTuple

from fairbench.results.paired import bound_of_difference, difference
from fairbench.results.store import Summary
from fairbench.results.values import Value, value_of
from fairbench_studies.dlpm.claims.places import At, contended

MAKESPAN = "time_to_100pct_s"  # time until all programs of the window had finished
LENGTH = "duration"  # time until all programs of the run had finished, unless it was cut off


class Outcome(StrEnum):
    """The outcome of a claim in one configuration or in all; ``OFF`` is only for numbers."""

    HOLDS = "holds"
    REVERSED = "reversed"
    INCONCLUSIVE = "inconclusive"
    UNCONTENDED = "not contended"
    OFF = "off"
    UNTESTABLE = "not testable"


class Seen(NamedTuple):
    """The result of one measure in one configuration: its mean, confidence interval and outcome.

    ``low`` and ``high`` are None if unknown. ``bound`` is ``>`` or ``<`` if ``value`` is only a
    bound of the mean; ``value`` is None if it is unknown, or for several pairs.
    """

    outcome: Outcome
    value: float | None = None
    low: float | None = None
    high: float | None = None
    bound: str = ""


@dataclass(frozen=True, slots=True)
class Pair:
    """The claim that a metric is larger for ``above`` than for ``below``, by ratio or difference.

    ``flip`` is the ratio or difference at which the sign of the claim changes.
    """

    name: str
    metric: str
    above: str
    below: str
    flip: float = 1.0
    is_ratio: bool = True

    @property
    def compared(self) -> frozenset[str]:
        """The router and the local scheduler that a pair needs."""
        return frozenset({self.above, self.below})

    def seen(self, at: At) -> Seen:
        """Compare the seeds that both schedulers have. Ratios are averaged as logarithms."""
        above, below = at[self.above], at[self.below]
        seeds = sorted(above.keys() & below.keys())
        more = [self._read(above[seed]) for seed in seeds]
        less = [self._read(below[seed]) for seed in seeds]
        found = difference(less, more)
        low, high = found.low, found.high
        bound = bound_of_difference(less, more)
        if found.runs == 1 and not found.undefined:
            low = found.mean if bound in ("", ">") else None
            high = found.mean if bound in ("", "<") else None
        elif found.runs < 2 or found.undefined:
            low = high = None
        flip = log(self.flip) if self.is_ratio else self.flip
        outcome = _outcome(low, high, flip)
        if not contended([above, below]):
            outcome = Outcome.UNCONTENDED
        value = None if bound is None else found.mean
        shown = self._shown
        return Seen(outcome, shown(value), shown(low), shown(high), bound or "")

    def _read(self, summary: Summary) -> Value:
        value = _reading(summary, self.metric)
        if not self.is_ratio or value.raw is None:
            return value
        return Value(log(value.raw), value.bound) if value.raw > 0 else Value(None)

    def _shown(self, value: float | None) -> float | None:
        return exp(value) if self.is_ratio and value is not None else value


@dataclass(frozen=True, slots=True)
class All:
    """Several pairs together, which hold if all hold and are reversed if one is."""

    name: str
    pairs: tuple[Pair, ...]

    @property
    def compared(self) -> frozenset[str]:
        """The schedulers that the pairs need."""
        return frozenset().union(*(pair.compared for pair in self.pairs))

    def seen(self, at: At) -> Seen:
        """Return the joint outcome of the pairs."""
        if not contended(at[name] for name in self.compared):
            return Seen(Outcome.UNCONTENDED)
        return Seen(joined(pair.seen(at).outcome for pair in self.pairs))


Measure = Pair | All


def joined(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the joint outcome of several conditions: the worst of them."""
    worst_first = (Outcome.UNCONTENDED, Outcome.REVERSED, Outcome.INCONCLUSIVE, Outcome.HOLDS)
    return min(outcomes, key=worst_first.index)


def _reading(summary: Summary, metric: str) -> Value:
    """Return a metric of a run; for unfinished work, the run's length as a lower bound."""
    value = value_of(summary, metric)
    unfinished = metric == LENGTH and summary["unfinished"]
    if unfinished or (metric == MAKESPAN and value.raw is None):
        return Value(summary[LENGTH], ">")
    return value


def _outcome(low: float | None, high: float | None, flip: float) -> Outcome:
    if low is not None and low > flip:
        return Outcome.HOLDS
    return Outcome.REVERSED if high is not None and high < flip else Outcome.INCONCLUSIVE
