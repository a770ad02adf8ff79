"""The progress of a simulation, for its watchers."""

from __future__ import annotations

from dataclasses import dataclass

from fairbench.config import ExperimentSpec
from fairbench.sim.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a simulation. ``shares`` are each client's fractions of the service so far.

    ``measuring`` is true when the run is over and only its metrics are pending.
    """

    sim_time_s: float
    end_s: float | None
    programs_done: int
    programs_started: int
    shares: dict[str, float]
    measuring: bool = False


def progress_of(cluster: Cluster, spec: ExperimentSpec, *, measuring: bool = False) -> Progress:
    """Return the current progress of a cluster that simulates the experiment."""
    total = sum(cluster.service) or 1
    done = len(cluster.program_log)
    return Progress(
        sim_time_s=cluster.now_s,
        end_s=spec.duration_s,
        programs_done=done,
        programs_started=done + len(cluster.running),
        shares=dict(zip(cluster.clients, (part / total for part in cluster.service), strict=True)),
        measuring=measuring,
    )
