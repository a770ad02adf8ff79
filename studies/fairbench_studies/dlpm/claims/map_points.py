"""Runs with varied settings, which show under which settings the claims of [DLPM] hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairbench.config import identity
from fairbench.config.sweep import Sweep, make_sweep, points, read_sweep
from fairbench.results.store import StoredRun, Summary
from fairbench_studies.dlpm.claims.fairness import ORDERS, WAITS
from fairbench_studies.dlpm.claims.map_axes import Draft, Step, steps_round
from fairbench_studies.dlpm.claims.pairs import Measure, Pair
from fairbench_studies.dlpm.claims.places import At, Place
from fairbench_studies.dlpm.claims.scaling import LOWEST, NEAR
from fairbench_studies.dlpm.claims.throughput import OVER_LPM, OVER_PREBLE, OVER_VTC
from fairbench_studies.dlpm.claims.trees import SOONER
from fairbench_studies.kit.outcomes import Seen


class Mapped(NamedTuple):
    """A claim, with the measures that judge it and the pairs of schedulers to draw as lines."""

    number: int
    measures: tuple[Measure, ...]
    lines: tuple[Pair, ...]


class Group(NamedTuple):
    """Claims that are judged in the same configurations and that compare the same schedulers."""

    claims: tuple[Mapped, ...]
    cells: tuple[Draft, ...]
    schedulers: tuple[str, ...]


def _cell(figure: str, **wanted: Any) -> Draft:
    sweep = read_sweep(figure)
    grid = next(one for one in sweep.grid if all(one.get(k) == v for k, v in wanted.items()))
    return {**sweep.base, **{key: value for key, value in grid.items() if key != "scheduler"}}


# The map of claims simulates Preble as its paper describes it, not as its published code works.
PREBLE = "preble"
_WAITS = {name: pairs for name, pairs in WAITS.items() if name in ("lpm", "vtc", PREBLE)}
IN_FIGURE_7 = (
    Mapped(1, OVER_VTC, OVER_VTC),
    Mapped(2, OVER_LPM, OVER_LPM),
    Mapped(4, OVER_PREBLE, OVER_PREBLE),
    Mapped(5, (*ORDERS, *ORDERS[0].pairs), ORDERS[0].pairs),
    Mapped(
        6,
        tuple(pair for pairs in _WAITS.values() for pair in pairs),
        tuple(pairs[0] for pairs in _WAITS.values()),
    ),
)
_SOONER = (SOONER["vtc"], SOONER[PREBLE])
DONE_FIRST = Mapped(9, _SOONER, _SOONER)
MANY_CLIENTS = Mapped(15, (LOWEST, *LOWEST.pairs, NEAR), (*LOWEST.pairs, NEAR))
MAPPED = (*IN_FIGURE_7, DONE_FIRST, MANY_CLIENTS)

_A100: tuple[Draft, ...] = tuple(
    {"workload": workload, "scenario": scenario, "dp": 4}
    for workload, scenario in (("tot", "s1"), ("tot", "s2"), ("judge", "s1"), ("long-qa", "s2"))
)


def groups(*, quick: bool = False) -> tuple[Group, ...]:
    """Return the claims in groups; ``quick`` leaves out the most expensive configuration."""
    return (
        Group(IN_FIGURE_7, _A100[1:] if quick else _A100, ("lpm", "vtc", "preble", "d2lpm")),
        Group((DONE_FIRST,), (_cell("fig9"),), ("vtc", "preble", "d2lpm")),
        Group((MANY_CLIENTS,), (_cell("fig11", clients=30),), ("lpm", "vtc", "dlpm")),
    )


SEEDS, QUICK_SEEDS = 3, 1


class Reading(NamedTuple):
    """The result of comparing schedulers in one configuration, with one changed setting."""

    claim: int
    measure: Measure
    place: Place
    step: Step
    seen: Seen
    seeds: int


@dataclass(frozen=True, slots=True)
class Chart:
    """The configurations, varied settings and seeds of the runs that judge a group of claims."""

    group: Group
    steps: Mapping[Place, Sequence[Step]]
    seeds: int

    @classmethod
    def of(cls, group: Group, seeds: int) -> Chart:
        """Return the chart of a group of claims, with every value of every varied setting."""
        places = zip(map(_place, group.cells), group.cells, strict=True)
        steps = {place: steps_round(cell, group.schedulers) for place, cell in places}
        return cls(group, steps, seeds)

    def grid(self) -> list[dict[str, Any]]:
        """Return the runs of this chart as entries for the key ``grid`` of a sweep."""
        return [self._draft(place, step) for place, of in self.steps.items() for step in of]

    def readings(self, finished: Mapping[str, StoredRun]) -> list[Reading]:
        """Return the results of all comparisons whose runs are finished."""
        return [
            Reading(claim.number, measure, place, step, measure.seen(at), seeds)
            for place, steps in self.steps.items()
            for step in steps
            for at in [self._at(place, step, finished)]
            for claim in self.group.claims
            for measure in claim.measures
            if (seeds := _seeds(measure, at))
        ]

    def summaries(self, finished: Mapping[str, StoredRun]) -> list[Summary]:
        """Return the summaries of those finished runs that the chart shows.

        The keys of ``finished`` are identities of experiments.
        """
        wanted = {identity(spec) for spec in points(map_sweep([self], "chart"))}
        return [run.summary for key, run in finished.items() if key in wanted]

    def _draft(self, place: Place, step: Step) -> dict[str, Any]:
        cell = next(cell for cell in self.group.cells if _place(cell) == place)
        return {**cell, **step.changes, "scheduler": list(self.group.schedulers)}

    def _at(self, place: Place, step: Step, finished: Mapping[str, StoredRun]) -> At:
        draft = self._draft(place, step)
        sweep = make_sweep({"name": "step", "num_runs": self.seeds, "grid": [draft]})
        found: dict[str, dict[int, Summary]] = {}
        for spec in points(sweep):
            if run := finished.get(identity(spec)):
                found.setdefault(spec.scheduler, {})[spec.seed] = run.summary
        return found


def map_sweep(charts: Sequence[Chart], name: str) -> Sweep:
    """Return a sweep that makes the runs of all ``charts``."""
    grid = [draft for chart in charts for draft in chart.grid()]
    return make_sweep({"name": name, "num_runs": charts[0].seeds, "grid": grid})


def _place(cell: Draft) -> Place:
    return Place(cell["workload"], cell["scenario"], cell["dp"])


def _seeds(measure: Measure, at: At) -> int:
    """Return the number of seeds for which all compared schedulers have finished runs."""
    return len(set.intersection(*(set(at.get(name, ())) for name in measure.compared)))
