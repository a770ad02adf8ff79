"""The runs behind the map of claims: cells, axes and schedulers as one sweep, each run once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairbench.config import identity
from fairbench.config.sweep import Sweep, make_sweep
from fairbench.config.sweep_points import points
from fairbench.figures.claims.fairness import ORDERS, WAITS
from fairbench.figures.claims.map_axes import Draft, Step, steps_round
from fairbench.figures.claims.pairs import Measure, Pair, Seen
from fairbench.figures.claims.places import At, Place
from fairbench.figures.claims.throughput import OVER_LPM, OVER_PREBLE, OVER_VTC
from fairbench.results.store import StoredRun


class Mapped(NamedTuple):
    """A claim on the map: the measures that its verdict has too, and what its picture shows."""

    number: int
    measures: tuple[Measure, ...]
    lines: tuple[Pair, ...]


_WAITS = tuple(pair for pairs in WAITS.values() for pair in pairs)
MAPPED = (
    Mapped(1, OVER_VTC, OVER_VTC),
    Mapped(2, OVER_LPM, OVER_LPM),
    Mapped(4, OVER_PREBLE, OVER_PREBLE),
    Mapped(5, (*ORDERS, *ORDERS[0].pairs), ORDERS[0].pairs),
    Mapped(6, _WAITS, tuple(pairs[0] for pairs in WAITS.values())),
)
SCHEDULERS = ("lpm", "vtc", "preble", "d2lpm")  # that they compare

CELLS: tuple[Draft, ...] = tuple(
    {"workload": workload, "scenario": scenario, "dp": 4}
    for workload, scenario in (("tot", "s1"), ("tot", "s2"), ("judge", "s1"), ("long-qa", "s2"))
)
QUICK_CELLS = CELLS[1:]  # without the dearest
SEEDS, QUICK_SEEDS = 3, 1


class Reading(NamedTuple):
    """What a measure says of a claim at one value of an axis in one cell."""

    claim: int
    measure: Measure
    place: Place
    step: Step
    seen: Seen
    seeds: int


@dataclass(frozen=True, slots=True)
class Chart:
    """The map of some cells: which steps each has."""

    steps: Mapping[Place, Sequence[Step]]
    cells: Mapping[Place, Draft]
    seeds: int

    @classmethod
    def of(cls, cells: Sequence[Draft], seeds: int) -> Chart:
        """The chart of these cells, over so many seeds."""
        by_place = {Place(c["workload"], c["scenario"], c["dp"]): c for c in cells}
        steps = {place: steps_round(cell) for place, cell in by_place.items()}
        return cls(steps, by_place, seeds)

    def sweep(self, name: str) -> Sweep:
        """All of its runs. Those that several axes or claims share are among them once."""
        grid = [
            {**self.cells[place], **step.changes, "scheduler": list(SCHEDULERS)}
            for place, steps in self.steps.items()
            for step in steps
        ]
        return make_sweep({"name": name, "num_runs": self.seeds, "grid": grid})

    def readings(self, finished: Mapping[str, StoredRun]) -> list[Reading]:
        """What the finished runs, by identity, say; nothing where one of those compared lacks."""
        found = []
        for place, steps in self.steps.items():
            for step in steps:
                at = self._at(place, step, finished)
                found += [
                    Reading(one.number, measure, place, step, measure.seen(at), _seeds(measure, at))
                    for one in MAPPED
                    for measure in one.measures
                    if measure.compared <= set(at) and _seeds(measure, at)
                ]
        return found

    def _at(self, place: Place, step: Step, finished: Mapping[str, StoredRun]) -> At:
        draft = {**self.cells[place], **step.changes, "scheduler": list(SCHEDULERS)}
        specs = points(make_sweep({"name": "step", "num_runs": self.seeds, "grid": [draft]}))
        found: dict[str, dict[int, Mapping[str, object]]] = {}
        for spec in specs:
            if run := finished.get(identity(spec)):
                found.setdefault(spec.scheduler, {})[spec.seed] = run.summary
        return found


def _seeds(measure: Measure, at: At) -> int:
    return len(set.intersection(*(set(at[name]) for name in measure.compared)))
