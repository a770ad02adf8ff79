"""Repeats: one experiment over several seeds, in parallel or in sequence, combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.config import ExperimentSpec
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure
from fairbench.execute.simulations import simulation, tell_ended
from fairbench.results.grid import point_names
from fairbench.results.intervals import INTERVALS_FILE, combine
from fairbench.results.new_directories import check_writable, created, fresh_directory
from fairbench.results.store import StoredRun, run_name, runs_in, write_json

if TYPE_CHECKING:
    from fairbench.live.backends.base import LiveOptions


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs in order of their seeds, and their summaries combined (``combine``).

    ``combined`` is None if it was interrupted before any run began.
    """

    path: Path
    runs: Sequence[StoredRun]
    combined: dict[str, Any] | None


def repeat(
    spec: ExperimentSpec,
    num_runs: int,
    parent: Path,
    options: LiveOptions | None,
    context: RunContext,
) -> Repeats:
    """Run the seeds from ``spec.seed`` on, each saved in one new directory.

    That directory also gets ``intervals.json``. Servers are started once, and their caches are
    emptied between runs; their logs are in this directory, too. After an interruption, begun runs
    are kept as they are. Raises Interrupted if interrupted before servers were ready, and the error
    of a failed run.
    """
    check_writable(parent)
    specs = [spec.model_copy(update={"seed": spec.seed + n}) for n in range(num_runs)]
    with created(parent):
        path = fresh_directory(parent, f"{run_name(spec)}-x{num_runs}")
        if spec.backend is None:
            summaries = simulate_all(specs, path, context)
        else:
            assert options is not None, "real servers have options"
            summaries = _one_after_another(specs, path, options, context)
    if not summaries:
        return Repeats(path, (), None)
    combined = combine(summaries)
    write_json(path / INTERVALS_FILE, combined)
    runs = sorted(runs_in(path), key=lambda run: int(run.summary["seed"]))
    return Repeats(path, runs, combined)


def simulate_all(
    specs: Sequence[ExperimentSpec], parent: Path, context: RunContext
) -> list[dict[str, Any]]:
    """Simulate and save all; return summaries in order, or fewer after an interruption.

    Raises the error of a failed run, after all have ended.
    """
    results = simulate_each(specs, parent, context)
    for result in results.values():
        if isinstance(result, Failure):
            raise result.error
    return [summary for _, summary in sorted(results.items())]


def simulate_each(
    specs: Sequence[ExperimentSpec], parent: Path, context: RunContext
) -> dict[int, Any]:
    """Simulate and save all; return the summary or the Failure of each run that ended, by index."""
    tasks = [simulation(spec, parent) for spec in specs]
    names = point_names(specs)
    results = {}
    for number, (index, result) in enumerate(context.run(tasks), start=1):
        results[index] = result
        error = str(result.error) if isinstance(result, Failure) else ""
        tell_ended(context, names[index], error, number, len(specs))
    return results


def _one_after_another(
    specs: Sequence[ExperimentSpec], parent: Path, options: LiveOptions, context: RunContext
) -> list[dict[str, Any]]:
    from fairbench.execute.live_run import cluster_in, run_live_in  # needs the live extra

    summaries = []
    starting = cluster_in(parent, specs[0], options, context, fresh=True)
    with context.progress.watching(), starting as cluster:
        for spec in specs:
            if context.interrupted():
                break
            result, _ = run_live_in(parent, spec, options, context, cluster)
            summaries.append(result.summary)
    return summaries
