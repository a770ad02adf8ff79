"""One live run, in a directory that exists from its start: nothing that finished is ever lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from fairbench.config import ExperimentSpec
    from fairbench.execute.interruption import Interruption
    from fairbench.live.backends.base import LiveOptions
    from fairbench.live.backends.workers import Workers
    from fairbench.results.run_result import RunResult


def run_and_save(
    spec: ExperimentSpec,
    options: LiveOptions,
    parent: Path,
    on_progress: Callable[[Any], None] | None,
    interrupted: Interruption,
    cluster: Workers | None = None,
) -> tuple[RunResult, Path]:
    """``run_in``, which exits if interrupted before the servers were ready."""
    with _exit_before_start(interrupted):
        return run_in(parent, spec, options, on_progress, interrupted, cluster)


def run_in(
    parent: Path,
    spec: ExperimentSpec,
    options: LiveOptions,
    on_progress: Callable[[Any], None] | None,
    interrupted: Interruption,
    cluster: Workers | None = None,
) -> tuple[RunResult, Path]:
    """Run in a fresh directory in ``parent``, save, and return the result and the directory.

    Raises KeyboardInterrupt if interrupted before the servers were ready, and leaves no directory
    then. After any other failure the directory keeps logs and records: see ``fairbench recover``.
    """
    from fairbench.live.run import run_live
    from fairbench.results.manifest import Stopwatch, build_manifest
    from fairbench.results.store import begin_run, write_run

    watch = Stopwatch.start()
    path = begin_run(parent, spec)
    with _removed_if_interrupted(path):
        result = run_live(
            spec,
            path,
            options,
            workers=cluster,
            on_progress=on_progress or _ignore,
            interrupted=interrupted,
        )
    manifest = build_manifest(spec, complete=result.complete, watch=watch)
    write_run(path, spec, result.tables(), result.summary, manifest)
    return result, path


@contextmanager
def shared_cluster(
    spec: ExperimentSpec,
    options: LiveOptions,
    parent: Path,
    on_progress: Callable[[Any], None] | None,
    interrupted: Interruption,
) -> Iterator[Workers | None]:
    """``cluster_in``, which exits if interrupted before they were ready, and removes ``parent``."""
    starting = cluster_in(parent, spec, options, on_progress, interrupted)
    with _exit_before_start(interrupted), _removed_if_interrupted(parent), starting as cluster:
        yield cluster


@contextmanager
def cluster_in(
    parent: Path,
    spec: ExperimentSpec,
    options: LiveOptions,
    on_progress: Callable[[Any], None] | None,
    interrupted: Interruption,
) -> Iterator[Workers | None]:
    """Workers for several runs in ``parent``, where their logs go; None for an endpoint.

    Raises KeyboardInterrupt if interrupted before they were ready.
    """
    from fairbench.live.run import own_workers
    from fairbench.live.run_folder import run_folder

    if spec.backend is None or not spec.backend.is_managed:
        yield None
        return
    with run_folder(parent) as folder:
        starting = own_workers(spec, folder, options, on_progress or _ignore, interrupted)
        with starting as cluster:
            yield cluster


@contextmanager
def _removed_if_interrupted(path: Path) -> Iterator[None]:
    """KeyboardInterrupt inside means that nothing was run: the directory goes."""
    try:
        yield
    except KeyboardInterrupt:
        shutil.rmtree(path)
        raise


@contextmanager
def _exit_before_start(interrupted: Interruption) -> Iterator[None]:
    """KeyboardInterrupt inside means that nothing was run: exit."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("fairbench: interrupted before the servers were ready", err=True)
        raise typer.Exit(interrupted.exit_code) from None


def _ignore(progress: Any) -> None:
    """The progress of a run that nobody watches."""


def as_progress_line(progress: Any) -> str:
    """Servers that are ready, then programs done and each client's throughput, in one line."""
    from fairbench.cli.progress import LINE_WIDTH, SHOWN_CLIENTS
    from fairbench.live.run import ServersProgress

    if isinstance(progress, ServersProgress):
        return f"servers ready {progress.ready}/{progress.total}"
    end = "" if progress.end_s is None else f" of {progress.end_s:,.0f}"
    line = (
        f"{progress.now_s:,.0f}{end} s  "
        f"programs {progress.programs_done:,}/{progress.programs_started:,}"
    )
    elapsed_s = max(progress.now_s, 1.0)
    rates = sorted((tokens / elapsed_s for tokens in progress.service.values()), reverse=True)
    shown = "/".join(f"{rate:,.0f}" for rate in rates[:SHOWN_CLIENTS])
    wide = f"{line}  service {shown} tok/s"
    return wide if len(wide) <= LINE_WIDTH else line
