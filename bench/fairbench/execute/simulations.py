"""Simulations as tasks of an executor: each is saved where it is run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.execute.executor import Saving
from fairbench.execute.files_read import files_of
from fairbench.execute.interruption import Interruption
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.store import save_run
from fairbench.sim.run import simulate


def simulation(spec: ExperimentSpec, parent: Path) -> Saving:
    """Return an executor task that simulates and saves a run, and returns its summary."""
    return Saving(partial(_simulate_and_save, spec), parent, files_of(spec))


def _simulate_and_save(
    spec: ExperimentSpec, parent: Path, interrupted: Interruption
) -> dict[str, Any]:
    watch = Stopwatch.start()
    result = simulate(spec, interrupted=interrupted)
    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    save_run(parent, spec, result.tables(), result.summary, manifest)
    return result.summary
