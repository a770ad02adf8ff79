"""A simulation that returns its tables and facts, without a summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.metrics.records import Facts
from fairbench.metrics.tables import Tables
from fairbench.sim.records.tables import tables_of
from fairbench.sim.run import Simulation, no_collector


class Simulated(NamedTuple):
    """The tables of a simulation, and the facts about it."""

    tables: Tables
    facts: Facts


def simulate_tables(
    spec: ExperimentSpec, interrupted: Callable[[], bool] | None = None
) -> Simulated:
    """Run an experiment to its end; raises RunFailed if it is interrupted."""
    simulation = Simulation(spec, spec.client_plans(), spec.source())
    with no_collector():
        complete = simulation.run(interrupted=interrupted)
    if not complete:
        raise RunFailed("interrupted")
    simulation.cluster.settle()
    facts = simulation.facts()
    simulation.cluster.abandon()
    return Simulated(tables_of(simulation.cluster.clients, simulation.logs), facts)
