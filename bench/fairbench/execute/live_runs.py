"""Runs on real servers: the user's flags, and the interface of packages that execute such runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fairbench import doors
from fairbench.config import ExperimentSpec, identity
from fairbench.config.flags import READY_S
from fairbench.config.serving import check_run_options, kinds_with, obeys, python_misplaced
from fairbench.errors import UsageError
from fairbench.execute.executors import LOCAL, LauncherFlags, check_launchers
from fairbench.results.experiments import point_names
from fairbench.results.store import SweepStore

if TYPE_CHECKING:
    from fairbench.config.backend import BackendConfig
    from fairbench.execute.simulations import FailedPoint
    from fairbench.execute.tasks import RunContext
    from fairbench.metrics.tables import RunResult


class LiveFlags(NamedTuple):
    """The user's flags that affect the start of servers and drivers, but not what runs record."""

    server_python: str | None = None
    ready_timeout_s: float = READY_S
    headers: Mapping[str, str] = {}
    launcher: str = LOCAL
    places: LauncherFlags = LauncherFlags()
    drivers: int = 1
    driver_launcher: str = LOCAL
    allow_untested: bool = False


NO_FLAGS = LiveFlags()


class LivePoint(NamedTuple):
    """A run of a sweep that takes place on real servers."""

    name: str
    spec: ExperimentSpec


class LiveRuns(Protocol):
    """The interface of classes that run experiments on servers (``BackendConfig.runs``).

    The methods raise UsageError if a run is impossible, and RunFailed if a run cannot continue.
    """

    def __init__(self, flags: LiveFlags, /) -> None: ...

    def check(self, spec: ExperimentSpec, /) -> None:
        """Raise UsageError if the run is impossible on this machine, before any server starts."""

    def check_points(self, points: Sequence[LivePoint], /) -> None:
        """Raise UsageError if a run of a sweep is impossible, before any server starts."""

    def run(
        self, parent: Path, spec: ExperimentSpec, context: RunContext, /
    ) -> tuple[RunResult, Path]:
        """Run an experiment in a new directory in ``parent``; return its result and its directory.

        Raises Interrupted, and leaves no files, if a signal comes before the servers are ready.
        """
        ...

    def run_seeds(
        self, parent: Path, specs: Sequence[ExperimentSpec], context: RunContext, /
    ) -> list[dict[str, Any]]:
        """Run experiments that differ only in the seed on the same servers; return summaries."""
        ...

    def run_points(
        self, store: SweepStore, points: Sequence[LivePoint], context: RunContext, /
    ) -> list[FailedPoint]:
        """Run all points of a sweep; store and return the failures."""
        ...

    def recover(self, spec: ExperimentSpec, folder: Path, /) -> RunResult:
        """Return the result of a killed run from the records in ``folder``."""
        ...


def live_runs(backend: BackendConfig, flags: LiveFlags = NO_FLAGS) -> LiveRuns:
    """Return the object that runs experiments on a backend.

    Raises UsageError if the backend's package is missing or does not fit this fairbench version.
    """
    kind: type[LiveRuns] = doors.loaded(backend.runs, f"backend {backend.kind}")
    return kind(flags)


def runs_of_points(
    points: Sequence[LivePoint], flags: LiveFlags
) -> list[tuple[LiveRuns, list[LivePoint]]]:
    """Return each runner (``LiveRuns``) with the points of a sweep that this runner executes."""
    groups: dict[str, list[LivePoint]] = {}
    first: dict[str, BackendConfig] = {}
    for point in points:
        if (backend := point.spec.backend) is not None:
            first.setdefault(backend.runs, backend)
            groups.setdefault(backend.runs, []).append(point)
    return [(live_runs(first[target], flags), group) for target, group in groups.items()]


def check_live(spec: ExperimentSpec, flags: LiveFlags) -> None:
    """Raise UsageError if the run is impossible on this machine, or if a flag has no effect."""
    if flags.allow_untested:
        _check_engine([spec])
    if spec.backend is not None:
        live_runs(spec.backend, flags).check(spec)
        return
    check_launchers(flags.launcher, flags.places, drivers=flags.driver_launcher)
    check_run_options(
        spec,
        headers=bool(flags.headers),
        server_python=flags.server_python is not None,
        launcher=flags.launcher != LOCAL,
        driver_launcher=flags.driver_launcher != LOCAL,
        drivers=flags.drivers,
    )


def check_live_points(specs: Sequence[ExperimentSpec], flags: LiveFlags) -> None:
    """Raise UsageError if a run of a sweep is impossible on this machine."""
    if flags.allow_untested:
        _check_engine(specs)
    if flags.server_python and not any(obeys(spec.backend, "server_python") for spec in specs):
        raise python_misplaced()
    for runs, points in runs_of_points([LivePoint("", spec) for spec in specs], flags):
        runs.check_points(points)


def _check_engine(specs: Sequence[ExperimentSpec]) -> None:
    """Raise UsageError if no run uses a real engine."""
    if not any(obeys(spec.backend, "server_python") for spec in specs):
        raise UsageError(f"--allow-untested-release needs --backend {kinds_with('server_python')}")


def live_points_left(store: SweepStore, specs: Sequence[ExperimentSpec]) -> list[LivePoint]:
    """Return a sweep's unfinished runs on real servers, in the order of the sweep."""
    finished = store.finished()
    return [
        LivePoint(name, spec)
        for spec, name in zip(specs, point_names(specs), strict=True)
        if spec.backend is not None and identity(spec) not in finished
    ]
