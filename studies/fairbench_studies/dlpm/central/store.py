"""Stored times per round of a central scheduler, and a function that measures missing times."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairbench.errors import UsageError
from fairbench.execute.tasks import RunContext
from fairbench.hardware.catalogue import resolve_profile
from fairbench.results.new_directories import check_writable
from fairbench.results.store import write_json
from fairbench_studies.dlpm.central.timing import time_rounds
from fairbench_studies.dlpm.fig4 import FILE, read_timings

TIMED_WORKERS = (1, 2, 4, 8)
TIMED_QUEUES = (50, 100, 200, 400)
TIMED_PROFILE = ("a100", "llama-3.1-8b")
ROUNDS, QUICK_ROUNDS = 50, 20


def fill_timings(folder: Path, context: RunContext, *, quick: bool = False) -> None:
    """Measure the timings of the central scheduler that ``folder`` lacks; store each immediately.

    Raises UsageError if the folder holds times from another machine.
    """
    rounds = QUICK_ROUNDS if quick else ROUNDS
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
            raise UsageError(f"{folder}: holds timings from another machine; rename this folder")
        timed = list(stored.points)
    else:
        check_writable(folder)
        folder.mkdir(parents=True, exist_ok=True)
    with context.progress.watching():
        for workers, waiting in _untimed(timed):
            if context.interrupted():
                return
            context.progress.update(f"timing {workers} replicas, queue of {waiting}")
            timed.append(asdict(time_rounds(workers, waiting, profile, rounds=rounds)))
            write_json(folder / FILE, basis | {"points": timed})


def _untimed(timed: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    done = {(point["workers"], point["waiting"]) for point in timed}
    every = [(workers, waiting) for workers in TIMED_WORKERS for waiting in TIMED_QUEUES]
    return [point for point in every if point not in done]
