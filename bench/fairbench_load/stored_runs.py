"""Live runs, which take place on real servers.

The directory of a run is created before the run starts, so that no result is lost. Several runs,
such as the runs of a sweep, can share servers. This module needs the packages of the extra "live".
"""

from __future__ import annotations

import shutil
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from fairbench.config import ExperimentSpec, identity
from fairbench.errors import FairbenchError, Interrupted
from fairbench.execute.live_runs import LivePoint
from fairbench.execute.simulations import FailedPoint, files_of, keep_all
from fairbench.execute.tasks import Failure, Interruption, RunContext, attempt
from fairbench.metrics.tables import RunResult
from fairbench.results.manifest import Stopwatch, build_manifest
from fairbench.results.new_directories import FOLDER, removing_new_folders, run_folder
from fairbench.results.store import LOG, SweepStore, begin_run, has_begun, write_run
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import Workers, by_workers, running_workers
from fairbench_load.drivers import drive_sharded
from fairbench_load.far_drivers import LocalCrew, RemoteCrew, address_facing
from fairbench_load.launchers import Wanted
from fairbench_load.processes.addresses import LOOPBACK
from fairbench_load.run import Driving, drive_here, run_live
from fairbench_load.sent_files import SentFiles

NOT_STARTED = "interrupted before the servers were ready"


def run_live_in(
    parent: Path,
    spec: ExperimentSpec,
    options: LiveOptions,
    context: RunContext,
    cluster: Workers | None = None,
) -> tuple[RunResult, Path]:
    """Run an experiment in a new directory in ``parent``; return its result and its directory.

    ``cluster`` contains workers that are already running, or is None. Raises Interrupted if a
    signal comes before the servers are ready; the run's directory is then removed. If the run
    fails, its directory keeps logs and records for ``recover_run``. If the failed run has no
    record, its directory is removed, and its logs are moved to a temporary directory.
    """
    watch = Stopwatch.start()
    with removing_new_folders(parent):
        path = begin_run(parent, spec)
        with (
            _removed_unless_begun(path, context),
            _driving(spec, options, context) as (how, address),
        ):
            result = run_live(
                spec,
                path,
                options,
                workers=cluster,
                on_progress=context.progress.update,
                interrupted=context.interrupted,
                driving=how,
                listen=address,
            )
    manifest = build_manifest(spec, complete=result.complete, watch=watch) | result.about
    write_run(path, spec, result.tables(), result.summary, manifest)
    return result, path


@contextmanager
def _driving(
    spec: ExperimentSpec, options: LiveOptions, context: RunContext
) -> Iterator[tuple[Driving, str]]:
    """Yield the function that sends the load, and the address at which drivers reach the router."""
    if (launcher := options.driver_launcher) is None:
        alone = options.drivers == 1
        here = drive_here if alone else partial(drive_sharded, LocalCrew(options.drivers))
        yield here, LOOPBACK
        return
    sent_files = SentFiles.with_files(files_of(spec))
    wanted = Wanted(options.drivers, spread=True, name="driver", asked="--drivers {}")
    with launcher.places(
        wanted, timeout_s=options.ready_timeout_s, interrupted=context.interrupted
    ) as places:
        address = address_facing(places[0].host)
        yield partial(drive_sharded, RemoteCrew(places, address, sent_files)), address


@contextmanager
def cluster_in(
    parent: Path,
    spec: ExperimentSpec,
    options: LiveOptions,
    context: RunContext,
    *,
    fresh: bool = False,
) -> Iterator[Workers | None]:
    """Start workers for several runs, with logs in ``parent``; for an endpoint, yield None.

    Raises KeyboardInterrupt if a signal comes before the workers are ready. If ``fresh`` is True,
    ``parent`` is removed when a signal interrupts the start.
    """
    if spec.backend is None or not spec.backend.is_managed:
        yield None
        return
    with (
        _removed_unless_begun(parent, context) if fresh else nullcontext(),
        run_folder(parent) as folder,
        running_workers(
            spec, folder, options, on_ready=context.progress.update, interrupted=context.interrupted
        ) as cluster,
    ):
        yield cluster


def run_live_seeds(
    parent: Path, specs: Sequence[ExperimentSpec], options: LiveOptions, context: RunContext
) -> list[dict[str, Any]]:
    """On the same servers, run experiments that differ only in the seed; return their summaries.

    After an interruption, some summaries are missing.
    """
    summaries = []
    starting = cluster_in(parent, specs[0], options, context, fresh=True)
    with context.progress.watching(), starting as cluster:
        for spec in specs:
            if context.interrupted():
                break
            result, _ = run_live_in(parent, spec, options, context, cluster)
            summaries.append(result.summary)
    return summaries


@contextmanager
def _removed_unless_begun(path: Path, context: RunContext) -> Iterator[None]:
    """Remove a run's directory if the ``with`` block ends with an error before the first record.

    After an error, such as a server that does not start, the logs are moved to a temporary
    directory, which the error message names.
    """
    try:
        yield
    except FairbenchError as error:
        if not has_begun(path) and (kept := without_logs(path)):
            error.args = (str(error).replace(str(path / FOLDER), str(kept)), *error.args[1:])
        raise
    except Interrupted:  # An interrupted run has already removed its files.
        raise
    except KeyboardInterrupt:
        shutil.rmtree(path)
        raise context.interrupted.ended(NOT_STARTED) from None


def run_live_points(
    store: SweepStore, points: Sequence[LivePoint], options: LiveOptions, context: RunContext
) -> list[FailedPoint]:
    """Run all points (experiments of a sweep) on real servers; store and return the failures.

    Servers are started once for all points that can share them, and started again after a failed
    point.
    """
    with context.progress.watching():
        run = _Runs(store, options, context)
        ended = chain.from_iterable(run.all(deque(group)) for group in by_workers(points))
        named = (((identity(point.spec), point.name), result) for point, result in ended)
        return keep_all(store, named, len(points), context)


@dataclass(frozen=True, slots=True)
class _Runs:
    """The live runs of a sweep; the methods yield each experiment with its result."""

    store: SweepStore
    options: LiveOptions
    context: RunContext

    def all(self, left: deque[LivePoint]) -> Iterator[tuple[LivePoint, Any]]:
        while left and not self.context.interrupted():
            try:
                yield from self._until_one_fails(left)
            # KeyboardInterrupt means that a signal came while the servers were starting.
            except KeyboardInterrupt:
                return
            except FairbenchError as error:
                reason = Failure(error, traceback.format_exc())
                yield from ((point, reason) for point in left)
                return

    def _until_one_fails(self, left: deque[LivePoint]) -> Iterator[tuple[LivePoint, Any]]:
        """Start servers, and run the experiments in ``left`` until one of them fails.

        An experiment is removed from ``left`` when its run begins.
        """
        interrupted = self.context.interrupted
        starting = cluster_in(self.store.path, left[0].spec, self.options, self.context)
        with starting as cluster:
            while left and not interrupted():
                point = left.popleft()
                result = attempt(partial(self._one, point.spec, cluster), interrupted)
                yield point, result
                if isinstance(result, Failure) or (cluster is not None and not cluster.is_whole):
                    return

    def _one(
        self, spec: ExperimentSpec, cluster: Workers | None, _: Interruption
    ) -> dict[str, Any]:
        result, _path = run_live_in(self.store.runs, spec, self.options, self.context, cluster)
        return result.summary


def without_logs(path: Path) -> Path | None:
    """Remove the directory of a run without records, and move its logs to a new folder.

    Return the new folder with the logs, or None if there are no logs.
    """
    logs = sorted(path.glob(f"*/[!.]*{LOG}"))
    kept = Path(mkdtemp(prefix="fairbench-logs-")) if logs else None
    for log in logs:
        shutil.move(log, f"{kept}/{log.name}")
    shutil.rmtree(path)
    return kept
