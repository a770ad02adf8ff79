"""The ranking of schedulers in each scenario, compared between simulation and measurement."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from fairbench_calibration.validate.live_run import Pair
from fairbench_studies.validation.slora.compare import RunComparison

# Measurements rank two schedulers only if they differ by at least ``RUN_NOISE_PCT`` percent. Under
# every scheduler, runs of December 2023 are 2 to 3% slower than runs of 2024 on the same trace.
RUN_NOISE_PCT = 3.0


@dataclass(frozen=True, slots=True)
class Inversion:
    """Two runs that the simulation and the measurement rank in opposite orders."""

    column: str
    first: str
    second: str
    measured: tuple[float, float]
    simulated: tuple[float, float]


@dataclass(frozen=True, slots=True)
class ScenarioOrder:
    """A pairwise comparison of the simulated order of a scenario's runs with the measured order."""

    scenario: str
    runs: tuple[str, ...]
    same: int
    close: int
    inverted: tuple[Inversion, ...]


def scheduler_orders(runs: list[RunComparison]) -> list[ScenarioOrder]:
    """Compare how the simulation and the measurement rank each scenario's runs by each metric."""
    scenarios = {run.scenario: [r for r in runs if r.scenario == run.scenario] for run in runs}
    return [_order(name, among) for name, among in scenarios.items() if len(among) > 1]


def _order(scenario: str, runs: list[RunComparison]) -> ScenarioOrder:
    same = close = 0
    inverted = []
    for one, other in combinations(runs, 2):
        theirs = dict(other.columns())
        for column, mine in one.columns():
            if column not in theirs:
                continue
            sides = _ranks(mine, theirs[column])
            if sides is None:
                close += 1
            elif sides:
                same += 1
            else:
                pairs = mine, theirs[column]
                measured = pairs[0].measured, pairs[1].measured
                simulated = pairs[0].simulated, pairs[1].simulated
                inverted.append(Inversion(column, one.name, other.name, measured, simulated))
    return ScenarioOrder(scenario, tuple(r.name for r in runs), same, close, tuple(inverted))


def _ranks(one: Pair, other: Pair) -> bool | None:
    """Return whether simulation ranks two runs as measured; None if measurements are close."""
    difference = one.measured - other.measured
    if not abs(difference) > RUN_NOISE_PCT / 100 * max(abs(one.measured), abs(other.measured)):
        return None
    return (one.simulated - other.simulated) * difference > 0
