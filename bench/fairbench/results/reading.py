"""Stored runs for a comparison: reads a directory, and checks files that users edit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from fairbench.errors import DataError
from fairbench.results.comparison import ComparedRun, compare_sweep, experiment_of
from fairbench.results.store import EXPERIMENT, MANIFEST, SUMMARY, read_run
from fairbench.results.summary_schema import check_summary
from fairbench.results.sweep_store import SWEEP_FILE


def runs_below(path: Path) -> Iterator[ComparedRun]:
    """Yield a directory's runs: for a sweep with comparison metrics, else all below.

    Raises DataError if there is none, or if a run is unreadable or incomplete.
    """
    if (path / SWEEP_FILE).exists():
        found = [run for cell in compare_sweep(path) for run in cell.runs]
    else:
        folders = sorted(file.parent for file in path.rglob(MANIFEST) if not _hidden(file, path))
        stored = [read_run(folder) for folder in folders]
        found = [ComparedRun(run, experiment_of(run), run.summary) for run in stored]
    if not found:
        raise DataError(f"{path}: " + ("holds no run" if path.is_dir() else "no such directory"))
    for run in found:
        check_summary(run.summary, run.run.path / SUMMARY)
        _check_experiment(run)
        if run.run.manifest.get("complete") is not True:
            raise DataError(
                f"{run.run.path}: this run is incomplete and cannot be compared; finish it, "
                "or leave it out"
            )
        yield run


def _check_experiment(run: ComparedRun) -> None:
    """Raise DataError if an experiment file lacks the keys from which names are made."""
    workload = run.experiment.get("workload")
    present = {*run.experiment, *(workload if isinstance(workload, Mapping) else ())}
    for key in ("name", "scenario", "dp", "scheduler", "seed"):
        if key not in present:
            raise DataError(f"{run.run.path / EXPERIMENT}: {key}: missing")


def _hidden(file: Path, below: Path) -> bool:
    """Return whether a file is still being written."""
    return any(part.startswith(".") for part in file.relative_to(below).parts)
