"""Cells of figure 7 compared with each other, place by place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairbench.figures.values import mean_of, value_of
from fairbench.results.comparison import SchedulerResults


class Place(NamedTuple):
    """A panel's row of figure 7, and the number of replicas."""

    workload: str
    scenario: str
    dp: int

    def __str__(self) -> str:
        return f"{self.workload} {self.scenario} at {self.dp}"


class Ratio(NamedTuple):
    """One scheduler's metric over another's; ``at_least`` if the first is only a lower bound."""

    place: Place
    value: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'>' if self.at_least else ''}{self.value:.2f}x ({self.place})"


def by_place(cells: Iterable[SchedulerResults]) -> Mapping[Place, Mapping[str, SchedulerResults]]:
    """The cells of each place, by scheduler."""
    found: dict[Place, dict[str, SchedulerResults]] = {}
    for cell in cells:
        summary = cell.combined
        place = Place(summary["workload"], summary["scenario"], summary["dp"])
        found.setdefault(place, {})[summary["scheduler"]] = cell
    return found


def ratios(cells: Iterable[SchedulerResults], metric: str, above: str, below: str) -> list[Ratio]:
    """``above``'s metric over ``below``'s wherever both are known; ``below``'s must be exact."""
    found = []
    for place, by_scheduler in by_place(cells).items():
        if not {above, below} <= set(by_scheduler):
            continue
        upper = value_of(by_scheduler[above], metric)
        lower = value_of(by_scheduler[below], metric)
        if upper and lower and lower.mean > 0 and not lower.at_least:
            found.append(Ratio(place, upper.mean / lower.mean, upper.at_least))
    return found


def largest(found: Sequence[Ratio]) -> Ratio:
    """The largest ratio."""
    return max(found, key=lambda ratio: ratio.value)


def smallest(found: Sequence[Ratio]) -> Ratio:
    """The smallest ratio."""
    return min(found, key=lambda ratio: ratio.value)


def indices(
    at: Mapping[str, SchedulerResults], metric: str, names: Iterable[str]
) -> list[float] | None:
    """A metric of these schedulers at one place; None unless all of them define it."""
    values = [mean_of(at[name], metric) for name in names if name in at]
    known = [value for value in values if value is not None]
    return known if len(known) == len(list(names)) else None
