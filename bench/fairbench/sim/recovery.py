"""Recovery: the records of a killed simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fairbench.config import ExperimentSpec
from fairbench.metrics.tables import RunResult
from fairbench.sim.records.spool import restore
from fairbench.sim.run import Simulation


def recover(spec: ExperimentSpec, folder: Path) -> RunResult:
    """Return an incomplete result from a killed simulation's records in its ``folder``.

    The result ends with the last record. Work in progress and records not yet filed are missing.
    Raises DataError if a file cannot be read.
    """
    source = spec.source()
    plans = spec.client_plans()
    simulation = Simulation(spec, plans, source)
    requests, programs, service, _ = simulation.logs
    restore(simulation.logs.by_name(), folder, len(plans))
    arrivals = programs.column("arrival_ps")
    ends = requests.column("finish_ps"), programs.column("finish_ps"), service.column("end_ps")
    simulation.cluster.last_arrival_ps = int(arrivals.max(initial=0))
    simulation.clock.stop_at(int(np.concatenate([arrivals, *ends]).max(initial=0)))
    return simulation.result(False, source)
