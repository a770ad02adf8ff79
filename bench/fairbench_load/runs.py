"""Functions that fairbench calls to check, run and recover experiments on real servers.

Methods that run experiments import modules that need the packages of the extra "live".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.config import ExperimentSpec
from fairbench.config.serving import obeys
from fairbench.execute.live_runs import LiveFlags, LivePoint
from fairbench_load.backends.base import LiveOptions
from fairbench_load.backends.workers import by_workers, check_live
from fairbench_load.options import live_options
from fairbench_load.plugin_config import allow_untested
from fairbench_load.processes.environment import require_live_extra

if TYPE_CHECKING:
    from fairbench.execute.simulations import FailedPoint
    from fairbench.execute.tasks import RunContext
    from fairbench.metrics.tables import RunResult
    from fairbench.results.store import SweepStore


class ServerRuns:
    """A runner of experiments on the servers of any ``LoadedBackend``."""

    def __init__(self, flags: LiveFlags) -> None:
        self._flags = flags
        if flags.allow_untested:
            allow_untested()

    def check(self, spec: ExperimentSpec) -> None:
        check_live(spec, live_options(self._flags))

    def check_points(self, points: Sequence[LivePoint]) -> None:
        for group in by_workers(points):
            spec = group[0].spec
            python = self._flags.server_python if obeys(spec.backend, "server_python") else None
            check_live(spec, LiveOptions(python))

    def run(
        self, parent: Path, spec: ExperimentSpec, context: RunContext
    ) -> tuple[RunResult, Path]:
        from fairbench_load.stored_runs import run_live_in

        return run_live_in(parent, spec, live_options(self._flags), context)

    def run_seeds(
        self, parent: Path, specs: Sequence[ExperimentSpec], context: RunContext
    ) -> list[dict[str, Any]]:
        from fairbench_load.stored_runs import run_live_seeds

        return run_live_seeds(parent, specs, live_options(self._flags), context)

    def run_points(
        self, store: SweepStore, points: Sequence[LivePoint], context: RunContext
    ) -> list[FailedPoint]:
        from fairbench_load.stored_runs import run_live_points

        return run_live_points(store, points, live_options(self._flags), context)

    def recover(self, spec: ExperimentSpec, folder: Path) -> RunResult:
        require_live_extra()
        from fairbench_load.summary import recover

        return recover(spec, folder)
