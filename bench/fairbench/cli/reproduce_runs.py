"""The runs and timings behind figures: what is missing in their stores is run, and kept."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from fairbench.cli.progress import live_progress
from fairbench.config.sweep import overridden, read_sweep
from fairbench.config.sweep_points import points
from fairbench.errors import RunFailed, UsageError
from fairbench.execute.interruption import Interruption, interruptible
from fairbench.execute.sweep_jobs import jobs_left, run_jobs
from fairbench.figures.central.timing import time_rounds
from fairbench.figures.fig4 import FILE, read_timings
from fairbench.hardware.catalogue import resolve_profile
from fairbench.results.directories import check_writable
from fairbench.results.store import write_json
from fairbench.results.sweep_store import SweepStore

TIMED = "fig4"  # the one figure of timings, not of runs
TIMED_WORKERS = (1, 2, 4, 8)
TIMED_QUEUES = (50, 100, 200, 400)
TIMED_PROFILE = ("a100", "llama-3.1-8b")
ROUNDS, QUICK_ROUNDS = 50, 20


def fill(folders: Mapping[str, Path], *, quick: bool, show: bool) -> None:
    """Run what is missing in the store of each figure.

    Raises RunFailed if points failed, after all the others. Exits 130 when interrupted.
    """
    failures = 0
    with interruptible() as interrupted:
        for name, folder in folders.items():
            if name == TIMED:
                _time(folder, QUICK_ROUNDS if quick else ROUNDS, interrupted, show=show)
            else:
                failures += _sweep(name, folder, interrupted, quick=quick, show=show)
            if interrupted():
                typer.echo(f"fairbench: interrupted; what finished is in {folder}", err=True)
                raise typer.Exit(interrupted.exit_code)
    if failures:
        raise RunFailed(f"{failures} points failed; see the folder failed of each store")


def _sweep(name: str, folder: Path, interrupted: Interruption, *, quick: bool, show: bool) -> int:
    """Run the points of a bundled sweep that its store lacks; how many failed."""
    seeds = {"num_runs": 1} if quick else {}
    sweep = overridden(read_sweep(name), {}, name=folder.name, **seeds)
    specs = points(sweep)
    if not folder.exists():
        store = SweepStore.create(folder.parent, sweep, specs)
    else:
        store = SweepStore(folder)
        if store.sweep() != sweep:
            raise UsageError(f"{folder}: holds another sweep; move it away or use --result-dir")
        store.discard_partial()
    failures = run_jobs(store, jobs_left(store, specs, with_alone=False), interrupted, show=show)
    for job, error in failures:
        typer.echo(f"fairbench: {job.name}: {error}", err=True)
    return len(failures)


def _time(folder: Path, rounds: int, interrupted: Interruption, *, show: bool) -> None:
    """Time the central scheduler where it was not timed yet; each point is kept when it is done.

    All timings of one store are of one machine.
    """
    gpu, model = TIMED_PROFILE
    profile = resolve_profile(gpu, model)
    basis = {
        "timing_profile": profile.profile_id,
        "host": f"{platform.machine()}, Python {platform.python_version()}",
        "seed": 0,
        "rounds": rounds,
    }
    timed: list[Mapping[str, Any]] = []
    if (folder / FILE).exists():
        stored = read_timings(folder)
        if any(getattr(stored, key) != value for key, value in basis.items()):
            raise UsageError(f"{folder}: holds timings of another machine; move it away")
        timed = list(stored.points)
    else:
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
    with live_progress(show, "timing {0[0]} replicas, queue of {0[1]}".format) as shown:
        for workers, waiting in _untimed(timed):
            if interrupted():
                return
            if shown is not None:
                shown((workers, waiting))
            timed.append(asdict(time_rounds(workers, waiting, profile, rounds=rounds)))
            write_json(folder / FILE, basis | {"points": timed})


def _untimed(timed: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    done = {(point["workers"], point["waiting"]) for point in timed}
    every = [(workers, waiting) for workers in TIMED_WORKERS for waiting in TIMED_QUEUES]
    return [point for point in every if point not in done]
