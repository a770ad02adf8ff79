"""Comparison of fair-finish with every other scheduler pair: dominance, and statistical tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from math import log
from typing import NamedTuple

from fairbench_studies.frontier.frozen import Cell, Configuration
from fairbench_studies.frontier.measures import Measured, Outcome
from fairbench_studies.frontier.paired_tests import Estimate, estimate, holm, non_inferior_gain

Outcomes = Mapping[Cell, Mapping[Configuration, Outcome]]

LESS = ("to_90_s", "to_100_s", "p95_s")  # lower values of these measures are better
PRIMARY = (*LESS, "served")
SECONDARY = ("share", "worst_minute", "service_tok_s", "output_tok_s")
LEAST = 1e-9  # value that replaces 0 before a logarithm is taken


class Relation(StrEnum):
    """Whether fair-finish dominates a rival scheduler in a configuration.

    Only the measures in ``PRIMARY`` are compared.
    """

    DOMINATES = "dominates"
    EQUAL = "equal"
    TRADES = "trades"
    DOMINATED = "dominated"


class Mark(StrEnum):
    """The result of comparing fair-finish with a rival by significance tests."""

    BETTER = "+"
    NOT_WORSE = "="
    A_LITTLE_WORSE = "=!"  # fair-finish is significantly worse, but by less than the margin
    WORSE = "!"
    OPEN = "?"


class Compared(NamedTuple):
    """Mean gains of fair-finish over a rival, and whether the rival or fair-finish dominates."""

    rival: Configuration
    estimates: Mapping[str, Estimate]
    marks: Mapping[str, Mark]
    relations: Mapping[Cell, Relation]

    def count(self, relation: Relation) -> int:
        """Return the number of configurations in which ``relation`` holds."""
        return sum(one is relation for one in self.relations.values())


def gain(name: str, ours: float, rival: float) -> float:
    """Return the logarithm of the factor by which fair-finish is better than a rival."""
    ratio = log(max(ours, LEAST) / max(rival, LEAST))
    return -ratio if name in LESS else ratio


def relation(ours: Outcome, rival: Outcome, margin: float) -> Relation:
    """Return whether fair-finish or its rival dominates the other scheduler.

    A scheduler dominates another if it is better by more than ``margin`` in at least one primary
    measure, and worse by more than ``margin`` in none.
    """
    gains = [gain(name, ours.mean(name), rival.mean(name)) for name in PRIMARY]
    worse = non_inferior_gain(margin)
    ahead, behind = any(one > -worse for one in gains), any(one < worse for one in gains)
    if ahead and behind:
        return Relation.TRADES
    if ahead:
        return Relation.DOMINATES
    return Relation.DOMINATED if behind else Relation.EQUAL


def compare(
    outcomes: Outcomes, ours: Configuration, *, margin: float, level: float
) -> list[Compared]:
    """Compare fair-finish with every other scheduler pair that was run."""
    cells = list(outcomes)
    rivals = [one for one in outcomes[cells[0]] if one != ours]
    estimates = {
        (rival, name): _estimate(outcomes, ours, rival, name)
        for rival in rivals
        for name in (*PRIMARY, *SECONDARY)
    }
    bounds = {one: _bounds(outcomes, one) for one in (ours, *rivals)}
    marks = _marks(
        estimates, {rival: (bounds[ours], bounds[rival]) for rival in rivals}, margin, level
    )
    return [
        Compared(
            rival,
            {name: one for (whose, name), one in estimates.items() if whose == rival},
            {name: mark for (whose, name), mark in marks.items() if whose == rival},
            {cell: relation(outcomes[cell][ours], outcomes[cell][rival], margin) for cell in cells},
        )
        for rival in rivals
    ]


def _bounds(outcomes: Outcomes, configuration: Configuration) -> frozenset[str]:
    return frozenset().union(*(here[configuration].bounds for here in outcomes.values()))


def _estimate(outcomes: Outcomes, ours: Configuration, rival: Configuration, name: str) -> Estimate:
    return estimate(
        {
            (cell.part, str(cell), cell.dp): seed_gains(name, here[ours].runs, here[rival].runs)
            for cell, here in outcomes.items()
        }
    )


def seed_gains(
    name: str, ours: Mapping[int, Measured], rival: Mapping[int, Measured]
) -> Sequence[float]:
    """Return, for each seed, the logarithm of fair-finish's gain over a rival in a measure."""
    return [gain(name, getattr(ours[seed], name), getattr(rival[seed], name)) for seed in ours]


Key = tuple[Configuration, str]
Bounds = Mapping[Configuration, tuple[frozenset[str], frozenset[str]]]
"""The measures that are only lower bounds, for fair-finish and for the rival, by rival."""


def _marks(
    estimates: Mapping[Key, Estimate], bounds: Bounds, margin: float, level: float
) -> Mapping[Key, Mark]:
    """Test whether fair-finish is better, not worse, or worse than each rival in each measure.

    P-values are corrected (Holm) over all rivals and measures. A value that is only a lower bound,
    such as a censored latency, never counts in favour of its scheduler.
    """
    pairs = [
        (one, name in bounds[rival][0], name in bounds[rival][1])
        for (rival, name), one in estimates.items()
    ]
    least = non_inferior_gain(margin)
    families = {
        Mark.BETTER: [1.0 if ours else one.p_above(0.0) for one, ours, _ in pairs],
        Mark.NOT_WORSE: [1.0 if ours else one.p_above(least) for one, ours, _ in pairs],
        Mark.WORSE: [1.0 if theirs else one.p_below(0.0) for one, _, theirs in pairs],
    }
    certain = {mark: [p <= level for p in holm(values)] for mark, values in families.items()}
    return {
        key: _mark({mark for mark, told in certain.items() if told[number]})
        for number, key in enumerate(estimates)
    }


def _mark(certain: Set[Mark]) -> Mark:
    if {Mark.NOT_WORSE, Mark.WORSE} <= certain:
        return Mark.A_LITTLE_WORSE
    return next((mark for mark in Mark if mark in certain), Mark.OPEN)
