"""Shared parts of ``fairbench reproduce`` for VTC's and Preble's own experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fairbench.execute.context import RunContext
from fairbench.execute.executor import Executor

SEEDS = 3


class Fill(Protocol):
    """A function that simulates the missing runs of a folder for some seeds."""

    def __call__(self, folder: Path, context: RunContext, *, seeds: int) -> None: ...


def filled(fill: Fill, folder: Path, executor: Executor, *, quick: bool, show: bool) -> int:
    """Run the missing simulations; return the number of complete seeds.

    Raises Interrupted when interrupted, and the error of a failed run.
    """
    from fairbench.execute.context import run_context
    from fairbench.report.progress import shown_progress

    seeds = 1 if quick else SEEDS
    with run_context(shown_progress() if show else None, executor) as context:
        fill(folder, context, seeds=seeds)
        if context.interrupted():
            raise context.interrupted.ended(f"interrupted; what finished is in {folder}")
    return seeds
