"""Runs from Python, as ``fairbench run`` and ``fairbench show``."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from fairbench.api.result import Result
from fairbench.config.flags.run import RunFlags
from fairbench.errors import RunFailed
from fairbench.execute.context import run_context
from fairbench.execute.live_options import LiveFlags, live_options
from fairbench.execute.one_run import run_and_save, run_unsaved
from fairbench.execute.requests import experiment as requested
from fairbench.report.progress import shown_progress
from fairbench.results.store import read_run
from fairbench.results.summary_schema import check_summary


def run(
    experiment: str | PathLike[str] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    result_dir: str | PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    server_python: str | None = None,
    ready_check_timeout_sec: float = 600.0,
    show_progress: bool = False,
    **flags: Unpack[RunFlags],
) -> Result:
    """Run one experiment, simulated or on real servers, and return its result.

    ``experiment`` is an experiment file, which ``flags`` override: those of ``fairbench run``, with
    underscores, with the same defaults and checks. ``settings`` are what ``--set`` sets, such as
    ``{"dlpm.quantum": 5000}``; ``headers`` are sent to ``base_url`` and never stored. The run is
    saved as one fresh directory in ``result_dir`` if there is one; else nothing stays on disk.

    Raises UsageError in one line for a wrong flag, value or combination; RunFailed if the run could
    not go on; Interrupted, a KeyboardInterrupt, at Ctrl-C. What had finished is saved then if there
    is a ``result_dir``.
    """
    file = None if experiment is None else Path(experiment)
    spec = requested(flags, settings or {}, file)
    live = LiveFlags(server_python, ready_check_timeout_sec, headers or {})
    options = live_options(spec, live)
    with run_context(shown_progress(show_progress)) as context:
        if result_dir is None:
            ran = run_unsaved(spec, options, context)
            result = Result.unsaved(spec, ran)
        else:
            ran, path = run_and_save(spec, options, Path(result_dir), context)
            result = Result.stored(read_run(path))
        if ran.complete:
            return result
        kept = "" if result.path is None else f"; the finished requests are saved to {result.path}"
        if context.interrupted():
            raise context.interrupted.ended(f"interrupted{kept}")
        raise RunFailed(f"{ran.summary['notes']['complete']}{kept}")


def load(directory: str | PathLike[str]) -> Result:
    """Return the result of a saved run from its directory.

    Raises DataError if the directory is not a run, is of another version, or has a damaged summary.
    """
    stored = read_run(Path(directory))
    check_summary(stored.summary, stored.path / "summary.json")
    return Result.stored(stored)
