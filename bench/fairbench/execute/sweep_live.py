"""The points of a sweep that real servers serve: one after another, sharing servers if they can."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fairbench.cli.live_flags import check_live
from fairbench.cli.progress import live_progress
from fairbench.config import ExperimentSpec, identity
from fairbench.config.backend import SGLang
from fairbench.errors import FairbenchError, UsageError
from fairbench.execute.interruption import Interruption
from fairbench.execute.live_run import as_progress_line, cluster_in, run_in
from fairbench.execute.local_processes import Failure, attempt
from fairbench.execute.sweep_jobs import keep_outcome
from fairbench.live.options import LiveOptions
from fairbench.live.servers.cluster import Cluster, same_workers
from fairbench.results.grid import point_names
from fairbench.results.sweep_store import SweepStore


class LivePoint(NamedTuple):
    """One run of a sweep."""

    name: str
    spec: ExperimentSpec


def check_live_points(specs: Sequence[ExperimentSpec], options: LiveOptions) -> None:
    """Raise UsageError, before anything is written or started, if a point is impossible here."""
    if options.server_python and not any(isinstance(spec.backend, SGLang) for spec in specs):
        raise UsageError("--server-python: only with --backend sglang")
    for group in by_workers([LivePoint("", spec) for spec in specs]):
        spec = group[0].spec
        python = options.server_python if isinstance(spec.backend, SGLang) else None
        check_live(spec, LiveOptions(python))


def live_points_left(store: SweepStore, specs: Sequence[ExperimentSpec]) -> list[LivePoint]:
    """What a sweep has not done yet on real servers, in the order of its points."""
    finished = store.finished()
    return [
        LivePoint(name, spec)
        for spec, name in zip(specs, point_names(specs), strict=True)
        if spec.backend is not None and identity(spec) not in finished
    ]


def by_workers(points: Sequence[LivePoint]) -> list[list[LivePoint]]:
    """The live ones among some points; those that the same workers can serve are together."""
    groups: list[list[LivePoint]] = []
    for point in points:
        group = next((one for one in groups if same_workers(one[0].spec, point.spec)), None)
        if group is not None:
            group.append(point)
        elif point.spec.backend is not None:
            groups.append([point])
    return groups


def run_live_points(
    store: SweepStore,
    points: Sequence[LivePoint],
    options: LiveOptions,
    interrupted: Interruption,
    *,
    show: bool,
) -> list[tuple[str, str]]:
    """Run all; the names of those that went wrong and why, which is also kept in the store.

    Servers are started once for all points that they can serve, and anew after one that failed.
    """
    failures = []
    with live_progress(show, as_progress_line) as on_progress:
        run = _Runs(store, options, on_progress, interrupted)
        for group in by_workers(points):
            for point, result in run.all(deque(group)):
                error = keep_outcome(store, identity(point.spec), point.name, result, interrupted)
                if error:
                    failures.append((point.name, error))
    return failures


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs points; results are as those of ``pool.run_tasks``."""

    store: SweepStore
    options: LiveOptions
    on_progress: Callable[[Any], None] | None
    interrupted: Interruption

    def all(self, left: deque[LivePoint]) -> Iterator[tuple[LivePoint, Any]]:
        """Points that can share servers, and what came of each that was begun."""
        while left and not self.interrupted():
            try:
                yield from self._until_one_fails(left)
            except KeyboardInterrupt:  # while servers were starting
                return
            except FairbenchError as error:
                reason = Failure(error, traceback.format_exc())
                yield from ((point, reason) for point in left)
                return

    def _until_one_fails(self, left: deque[LivePoint]) -> Iterator[tuple[LivePoint, Any]]:
        """On one start of the servers; takes out of ``left`` what was begun."""
        spec, path = left[0].spec, self.store.path
        starting = cluster_in(path, spec, self.options, self.on_progress, self.interrupted)
        with starting as cluster:
            while left and not self.interrupted():
                point = left.popleft()
                result = attempt(partial(self._one, point.spec, cluster), self.interrupted)
                yield point, result
                if isinstance(result, Failure) or (cluster is not None and not cluster.is_whole):
                    return

    def _one(
        self, spec: ExperimentSpec, cluster: Cluster | None, interrupted: Interruption
    ) -> dict[str, Any]:
        result, _ = run_in(
            self.store.runs, spec, self.options, self.on_progress, interrupted, cluster
        )
        return result.summary
