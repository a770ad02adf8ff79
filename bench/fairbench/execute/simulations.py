"""Simulations as tasks of an executor, and the files that they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.execute.executor import Saving
from fairbench.execute.interruption import Interruption
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.store import save_run
from fairbench.schedulers.params import cost_names
from fairbench.sim.run import simulate
from fairbench.workloads.datasets import HUB_PREFIX


def files_of(spec: ExperimentSpec) -> tuple[str, ...]:
    """Return the files that an experiment reads: traces, costs, data set and tokenizer.

    The workload itself is part of the spec. Files of ``FAIRBENCH_SCHEDULERS`` and
    ``FAIRBENCH_PROGRAMS`` belong to every experiment and are left out. A hub name refers to no file
    of the user's.
    """
    found = [*_called_file(spec.workload.model_dump()), *cost_names(spec.settings)]
    if spec.dataset_path and not spec.dataset_path.startswith(HUB_PREFIX):
        found.append(spec.dataset_path)
    if spec.tokenizer and Path(spec.tokenizer).exists():
        found.append(spec.tokenizer)
    return tuple(dict.fromkeys(found))


def _called_file(value: Any) -> Iterator[str]:
    """Yield every text under a key ``file``, such as a trace in the parameters of arrivals."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key == "file" and isinstance(one, str):
                yield one
            yield from _called_file(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _called_file(one)


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
