"""A claim of a paper and its parts, which are judged separately.

A direction *holds*, is *reversed*, or is *inconclusive*, which does not count as a failure. A
number of the paper holds if fairbench's number is near it, and is *off* otherwise. A part is *not
contended* if no client competed for service, and *not testable* if the paper says too little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

from fairbench_studies.kit.outcomes import Outcome, exceeds, joined

COUNTED = (Outcome.HOLDS, Outcome.REVERSED, Outcome.OFF, Outcome.INCONCLUSIVE)
"""The outcomes of parts that were tested, the best first."""


@dataclass(frozen=True, slots=True)
class Part:
    """A single statement of a claim, with its outcome.

    ``ours`` describes fairbench's numbers. ``beside`` holds the outcome by measures other than the
    paper's, which are reported but not counted. ``elsewhere`` names the configurations in which the
    statement does not hold.
    """

    text: str
    outcome: Outcome
    ours: str
    beside: Mapping[str, Outcome] = field(default_factory=dict)
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the paper at ``source``; ``paper`` is its number or wording.

    ``judge`` takes the data of the figure ``figure`` and returns the claim's parts. ``cause`` is
    the reason why parts do not hold, if some do not.
    """

    number: int
    text: str
    paper: str
    source: str
    figure: str
    judge: Callable[[Any], Sequence[Part]]
    cause: str


def number(text: str, value: float, low: float, high: float, shown: str) -> Part:
    """Return a part that is a number, which holds from ``low`` to ``high``."""
    outcome = Outcome.HOLDS if low <= value <= high else Outcome.OFF
    return Part(text, outcome if value == value else Outcome.INCONCLUSIVE, shown)


def in_every(text: str, found: Sequence[bool], ours: str) -> Part:
    """Return a part that holds if every seed shows it, and is reversed if none does."""
    there = sum(found)
    outcome = Outcome.INCONCLUSIVE
    if there in (0, len(found)):
        outcome = Outcome.HOLDS if there else Outcome.REVERSED
    seeds = f" (in {there} of {len(found)} seeds)" if len(found) > 1 else ""
    return Part(text, outcome, ours + seeds)


def mean_within(text: str, found: Iterable[float], low: float, high: float, form: str) -> Part:
    """Return a part that is a mean over the seeds, shown in a form such as ``{:.1f} s``."""
    mean = fmean(found)
    return number(text, mean, low, high, form.format(mean))


def rising(
    text: str,
    sides: Sequence[Iterable[float]],
    form: str,
    flip: float = 1.0,
    *,
    is_ratio: bool = True,
) -> Part:
    """Return a part that says that each side exceeds the side before it (``exceeds``).

    The part holds if every step does, and is reversed if a step is. ``form`` shows the means over
    the seeds, such as ``FCFS {1:.0f}, VTC {0:.0f}``.
    """
    steps = (exceeds(less, more, flip, is_ratio=is_ratio) for less, more in pairwise(sides))
    outcome = joined(step.outcome for step in steps)
    return Part(text, outcome, form.format(*map(fmean, sides)))


def score(parts: Sequence[Part]) -> str:
    """Return ``3 of 4 parts hold, 1 inconclusive`` for the tested parts."""
    counts = Counter(part.outcome for part in parts)
    tested = sum(counts[outcome] for outcome in COUNTED)
    if not tested:
        return str(parts[0].outcome)
    noun = "part holds" if tested == 1 else "parts hold"
    rest = [f"{counts[one]} {one}" for one in COUNTED[1:] if counts[one]]
    return ", ".join([f"{counts[Outcome.HOLDS]} of {tested} {noun}", *rest])


def total(parts: Sequence[Part]) -> Mapping[Outcome, int]:
    """Return how many parts have each outcome."""
    return Counter(part.outcome for part in parts)
