"""Counts of the configurations in which a claim holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any

from fairbench_studies.kit.outcomes import Outcome, Seen
from fairbench_studies.kit.parts import Part

# A claim holds if at least the fraction ``MOST`` of measured runs, or of configurations with a
# conclusive verdict, supports the claim.
MOST = 0.8


@dataclass(frozen=True, slots=True)
class Tally:
    """The verdict on a claim in each configuration, judged by one measure."""

    name: str
    seen: Mapping[Any, Seen]

    def where(self, outcome: Outcome) -> list[Any]:
        """Return the configurations that have the given verdict."""
        return [place for place, seen in self.seen.items() if seen.outcome is outcome]

    def within(self, keep: Callable[[Any], bool]) -> Tally:
        """Return a copy of the tally with only the configurations for which ``keep`` is true."""
        return replace(self, seen={place: one for place, one in self.seen.items() if keep(place)})

    @property
    def holds(self) -> int:
        """The number of configurations in which the claim holds."""
        return len(self.where(Outcome.HOLDS))

    @property
    def counted(self) -> int:
        """The number of configurations in which clients competed for service."""
        return len(self.seen) - len(self.where(Outcome.UNCONTENDED))

    @property
    def values(self) -> Mapping[Any, Seen]:
        """The measure's known values in configurations in which clients competed, ascending."""
        known = {
            place: seen
            for place, seen in self.seen.items()
            if seen.outcome is not Outcome.UNCONTENDED and seen.value is not None
        }
        return dict(sorted(known.items(), key=lambda one: one[1].value or 0.0))

    def outcome(self) -> Outcome:
        """Return the joint verdict over all configurations in which clients competed for GPU time.

        The joint verdict is "holds" if at least half of the configurations have the verdict
        "holds", and if "holds" is at least four times as frequent as "reversed". The joint verdict
        is "reversed" if at least half of the configurations have the verdict "reversed", and if
        "reversed" is at least four times as frequent as "holds".
        """
        if not self.counted:
            return Outcome.UNCONTENDED
        reversed_ = len(self.where(Outcome.REVERSED))
        for outcome, there in ((Outcome.HOLDS, self.holds), (Outcome.REVERSED, reversed_)):
            if there >= MOST * (self.holds + reversed_) and there >= self.counted / 2:
                return outcome
        return Outcome.INCONCLUSIVE

    @property
    def score(self) -> str:
        """The configurations by verdict as text: ``holds in 20 of 21 (reversed in 1)``."""
        rest = [
            f"{outcome} in {len(places)}"
            for outcome in (Outcome.REVERSED, Outcome.INCONCLUSIVE)
            if (places := self.where(outcome))
        ]
        if not self.counted:
            return "nowhere contended"
        score = f"holds in {self.holds} of {self.counted}"
        return f"{score} ({', '.join(rest)})" if rest else score

    @property
    def extremes(self) -> str:
        """The measure's range as text, such as ``from 0.96x (tot s2) to 4.06x (long-qa s1)``."""
        values = list(self.values.items())
        if not values:
            return "nothing known"
        (low_at, low), (high_at, high) = values[0], values[-1]
        return f"from {_ratio(low)} ({low_at}) to {_ratio(high)} ({high_at})"

    @property
    def elsewhere(self) -> str:
        """A list of the configurations in which the claim does not hold, grouped by verdict."""
        listed = [
            f"{outcome}: {', '.join(map(str, places))}"
            for outcome in Outcome
            if outcome is not Outcome.HOLDS and (places := self.where(outcome))
        ]
        return "; ".join(listed)


def _ratio(seen: Seen) -> str:
    value = seen.value or 0.0
    if seen.bound == ">":  # Rounding up a lower bound could make the bound false.
        value = floor(value * 100) / 100
    return f"{seen.bound}{value:.2f}x"


def decided(there: int, of: int) -> Outcome:
    """Return the verdict on a claim that holds in ``there`` of ``of`` configurations."""
    if not of:
        return Outcome.UNCONTENDED
    if there >= MOST * of:
        return Outcome.HOLDS
    return Outcome.REVERSED if of - there >= MOST * of else Outcome.INCONCLUSIVE


def part_of(text: str, tallies: Sequence[Tally], ours: str = "") -> Part:
    """Return a claim's part with the verdict of ``tallies[0]``, and report all other tallies."""
    first, *beside = tallies
    # ``Part.outcome`` already contains "holds", so ``Part.ours`` omits the word.
    counted = first.score.removeprefix(f"{Outcome.HOLDS} ")
    said = counted if not ours else f"{counted}, {ours}"
    others = {one.name: one.outcome() for one in beside}
    return Part(text, first.outcome(), said, others, first.elsewhere)
