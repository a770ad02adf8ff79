"""A claim of a paper, and the statements ("parts") into which it is split for judging.

A claimed direction *holds*, is *reversed*, or is *inconclusive* (not counted as a failure).
A claimed number *holds* if the simulated number is close to it, and is *off* otherwise. A part is
*not contended* if clients never competed for service, and *not testable* if the paper says too
little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from fairbench.results.significance import difference
from fairbench.results.summary import Value
from fairbench_studies.kit.outcomes import Outcome, Seen, exceeds, joined

COUNTED = (Outcome.HOLDS, Outcome.REVERSED, Outcome.OFF, Outcome.INCONCLUSIVE)
"""The verdicts with which a claim's part counts as tested, from best to worst."""


@dataclass(frozen=True, slots=True)
class Part:
    """A statement of a claim, and the verdict on it.

    ``ours`` is fairbench's result as text. ``beside`` holds verdicts by measures that are not the
    paper's; these verdicts do not count. ``elsewhere`` names the configurations in which the
    claim's statement does not hold. If the paper is unclear, ``under`` holds the verdict for each
    interpretation. ``interval`` is the 95% interval of the number that decides the verdict, or ""
    if several numbers decide.
    """

    text: str
    outcome: Outcome
    ours: str
    beside: Mapping[str, Outcome] = field(default_factory=dict)
    elsewhere: str = ""
    under: Mapping[str, Outcome] = field(default_factory=dict)
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that a paper makes, and the function ``judge`` that tests the claim.

    ``source`` is the section or figure of the paper, and ``paper`` is the claimed number or
    wording. ``judge`` takes the data of ``figure`` and returns the claim's parts. ``cause`` says
    why some parts of the claim do not hold.
    """

    number: int
    text: str
    paper: str
    source: str
    figure: str
    judge: Callable[[Any], Sequence[Part]]
    cause: str


def number(text: str, value: float, low: float, high: float, shown: str) -> Part:
    """Judge whether ``value`` is between ``low`` and ``high``. ``shown`` is ``value`` as text."""
    outcome = Outcome.HOLDS if low <= value <= high else Outcome.OFF
    return Part(text, outcome if value == value else Outcome.INCONCLUSIVE, shown)


def in_every(text: str, found: Sequence[bool], ours: str) -> Part:
    """Judge a statement that holds if every seed confirms it, and is reversed if no seed does."""
    there = sum(found)
    outcome = Outcome.INCONCLUSIVE
    if there in (0, len(found)):
        outcome = Outcome.HOLDS if there else Outcome.REVERSED
    seeds = f" (in {there} of {len(found)} seeds)" if len(found) > 1 else ""
    return Part(text, outcome, ours + seeds)


def mean_within(text: str, found: Iterable[float], low: float, high: float, form: str) -> Part:
    """Judge whether the mean of ``found`` lies between ``low`` and ``high``.

    ``form`` is a format string for the mean, such as ``{:.1f} s``.
    """
    values = list(found)
    mean = fmean(values)
    one = number(text, mean, low, high, form.format(mean))
    return replace(one, interval=_interval(values, form))


def _interval(values: Sequence[float], form: str) -> str:
    """Return the 95% interval of the mean over seeds as text, or "" for a single seed."""
    if len(set(values)) < 2:
        return ""
    zero = [Value(0.0)] * len(values)
    found = difference(zero, [Value(one) for one in values])
    return f"{form.format(found.low)} to {form.format(found.high)}"


def rising(
    text: str,
    sides: Sequence[Iterable[float]],
    form: str,
    flip: float = 1.0,
    *,
    is_ratio: bool = True,
) -> Part:
    """Judge whether each list of values in ``sides`` exceeds the previous list.

    The verdict is "reversed" if a list has lower values than the list before it. ``form`` is a
    format string for the means over seeds, such as ``FCFS {1:.0f}, VTC {0:.0f}``.
    """
    pairs = [([*less], [*more]) for less, more in pairwise([[*side] for side in sides])]
    steps = [exceeds(less, more, flip, is_ratio=is_ratio) for less, more in pairs]
    outcome = joined(step.outcome for step in steps)
    shown = interval_of(steps[0], is_ratio=is_ratio) if len(steps) == 1 else ""
    return Part(text, outcome, form.format(*map(fmean, sides)), interval=shown)


def interval_of(seen: Seen, *, is_ratio: bool = True) -> str:
    """Return the interval of a comparison as text, such as ``1.05x to 1.22x``."""
    if seen.low is None or seen.high is None or seen.low == seen.high:
        return ""
    form = "{:.2f}x" if is_ratio else "{:+.3g}"
    return f"{form.format(seen.low)} to {form.format(seen.high)}"


def score(parts: Sequence[Part]) -> str:
    """Return a summary of a claim's tested parts, such as ``3 of 4 parts hold, 1 inconclusive``."""
    counts = Counter(part.outcome for part in parts)
    tested = sum(counts[outcome] for outcome in COUNTED)
    if not tested:
        return str(parts[0].outcome)
    noun = "part holds" if tested == 1 else "parts hold"
    rest = [f"{counts[one]} {one}" for one in COUNTED[1:] if counts[one]]
    return ", ".join([f"{counts[Outcome.HOLDS]} of {tested} {noun}", *rest])


def total(parts: Sequence[Part]) -> Mapping[Outcome, int]:
    """Return, for each verdict, the number of claim parts with this verdict."""
    return Counter(part.outcome for part in parts)
