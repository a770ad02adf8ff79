"""The points of a sweep on real servers, run in sequence with shared servers.

Needs the live extra.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fairbench.config import ExperimentSpec, identity
from fairbench.errors import FairbenchError
from fairbench.execute.context import RunContext
from fairbench.execute.executor import Failure, attempt
from fairbench.execute.interruption import Interruption
from fairbench.execute.live_options import LivePoint, by_workers
from fairbench.execute.live_run import cluster_in, run_live_in
from fairbench.execute.outcomes import FailedPoint, keep_outcome, tell_ended
from fairbench.live.backends.base import LiveOptions
from fairbench.live.backends.workers import Workers
from fairbench.results.sweep_store import SweepStore


def run_live_points(
    store: SweepStore, points: Sequence[LivePoint], options: LiveOptions, context: RunContext
) -> list[FailedPoint]:
    """Run all points; return the failures, which are also stored.

    Servers are started once for all points that they can serve, and anew after one that failed.
    """
    failures = []
    number = 0
    with context.progress.watching():
        run = _Runs(store, options, context)
        for group in by_workers(points):
            for point, result in run.all(deque(group)):
                key = identity(point.spec)
                error = keep_outcome(store, key, point.name, result, context.interrupted)
                if error:
                    failures.append(FailedPoint(point.name, error))
                number += 1
                tell_ended(context, point.name, error, number, len(points))
    return failures


@dataclass(frozen=True, slots=True)
class _Runs:
    """Runs points; results have the form of an ``Executor``'s."""

    store: SweepStore
    options: LiveOptions
    context: RunContext

    def all(self, left: deque[LivePoint]) -> Iterator[tuple[LivePoint, Any]]:
        """Yield points that can share servers, each with its result once begun."""
        while left and not self.context.interrupted():
            try:
                yield from self._until_one_fails(left)
            except KeyboardInterrupt:  # while servers were starting
                return
            except FairbenchError as error:
                reason = Failure(error, traceback.format_exc())
                yield from ((point, reason) for point in left)
                return

    def _until_one_fails(self, left: deque[LivePoint]) -> Iterator[tuple[LivePoint, Any]]:
        """Run points on one start of the servers, removing them from ``left`` as they begin."""
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
