"""Pairs of schedulers in one configuration, compared seed by seed to judge a claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.results.store import Summary
from fairbench.results.summary import Value, value_of
from fairbench_studies.dlpm.claims.places import At, contended
from fairbench_studies.kit.outcomes import Outcome, Seen, compared, joined
from fairbench_studies.kit.tally import Tally

MAKESPAN = "time_to_100pct_s"  # time until all programs of the measured window have finished
LENGTH = "duration"  # time until all programs have finished, or until the run is cut off


@dataclass(frozen=True, slots=True)
class Pair:
    """The claim that a metric is larger under the scheduler ``above`` than under ``below``.

    The claim holds if the ratio ``above / below`` exceeds ``flip``. If ``is_ratio`` is false, the
    claim holds if the difference ``above - below`` exceeds ``flip``.
    """

    name: str
    metric: str
    above: str
    below: str
    flip: float = 1.0
    is_ratio: bool = True

    @property
    def compared(self) -> frozenset[str]:
        """The names of the two compared schedulers."""
        return frozenset({self.above, self.below})

    def seen(self, at: At) -> Seen:
        """Compare the two schedulers over the seeds that both schedulers have."""
        above, below = at[self.above], at[self.below]
        seeds = sorted(above.keys() & below.keys())
        less, more = (
            [_reading(runs[seed], self.metric) for seed in seeds] for runs in (below, above)
        )
        seen = compared(less, more, self.flip, is_ratio=self.is_ratio)
        return seen if contended([above, below]) else seen._replace(outcome=Outcome.UNCONTENDED)


@dataclass(frozen=True, slots=True)
class All:
    """A claim about several pairs of schedulers, which holds only if it holds for every pair.

    If the opposite of the claim holds for any pair of schedulers, the whole claim counts as
    reversed.
    """

    name: str
    pairs: tuple[Pair, ...]

    @property
    def compared(self) -> frozenset[str]:
        """The names of all compared schedulers."""
        return frozenset().union(*(pair.compared for pair in self.pairs))

    def seen(self, at: At) -> Seen:
        """Return the joint verdict on all scheduler pairs in one configuration."""
        if not contended(at[name] for name in self.compared):
            return Seen(Outcome.UNCONTENDED)
        return Seen(joined(pair.seen(at).outcome for pair in self.pairs))


Measure = Pair | All


def tally(measure: Measure, at: Mapping[Any, At]) -> Tally:
    """Judge a claim about a metric in the configurations in which all compared schedulers ran."""
    return Tally(
        measure.name,
        {place: measure.seen(runs) for place, runs in at.items() if measure.compared <= set(runs)},
    )


def _reading(summary: Summary, metric: str) -> Value:
    """Return a metric of a run, or a lower bound for the length of an unfinished run."""
    value = value_of(summary, metric)
    unfinished = metric == LENGTH and summary["unfinished"]
    if unfinished or (metric == MAKESPAN and value.raw is None):
        return Value(summary[LENGTH], ">")
    return value
