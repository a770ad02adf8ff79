"""Options of live runs, and which points of a sweep on real servers can share servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairbench.config import ExperimentSpec, identity
from fairbench.config.backend_checks import check_run_options, obeys, python_misplaced
from fairbench.config.flags.run import READY_S
from fairbench.execute.launchers import (
    LOCAL,
    LauncherFlags,
    check_launchers,
    driver_launcher_named,
    launcher_named,
)
from fairbench.results.grid import point_names
from fairbench.results.sweep_store import SweepStore

if TYPE_CHECKING:
    from fairbench.live.backends.base import LiveOptions


class LiveFlags(NamedTuple):
    """The user's choice of how servers and drivers start, which changes no record."""

    server_python: str | None = None
    ready_timeout_s: float = READY_S
    headers: Mapping[str, str] = {}
    launcher: str = LOCAL
    places: LauncherFlags = LauncherFlags()
    drivers: int = 1
    driver_launcher: str = LOCAL

    def options(self) -> LiveOptions:
        """Return the options with the launchers that are named. Raises UsageError."""
        from fairbench.live.backends.base import LiveOptions

        far = driver_launcher_named(self.driver_launcher, self.places)
        launcher = launcher_named(self.launcher, self.places, drivers=self.driver_launcher)
        return LiveOptions(
            self.server_python, self.ready_timeout_s, self.headers, launcher, self.drivers, far
        )


def live_options(spec: ExperimentSpec, flags: LiveFlags) -> LiveOptions | None:
    """Return the options of a live run, or None for a simulation with flags of a live run.

    Raises UsageError if the run is impossible here, or if no part of it uses a flag.
    """
    if spec.backend is not None:
        from fairbench.live.backends.registry import check_live

        options = flags.options()
        check_live(spec, options)
        return options
    check_launchers(flags.launcher, flags.places, drivers=flags.driver_launcher)
    check_run_options(
        spec,
        headers=bool(flags.headers),
        server_python=flags.server_python is not None,
        launcher=flags.launcher != LOCAL,
        driver_launcher=flags.driver_launcher != LOCAL,
        drivers=flags.drivers,
    )
    return None


NO_FLAGS = LiveFlags()


class LivePoint(NamedTuple):
    """A run of a sweep on real servers."""

    name: str
    spec: ExperimentSpec


def live_points_left(store: SweepStore, specs: Sequence[ExperimentSpec]) -> list[LivePoint]:
    """Return a sweep's unfinished runs on real servers, in the order of its points."""
    finished = store.finished()
    return [
        LivePoint(name, spec)
        for spec, name in zip(specs, point_names(specs), strict=True)
        if spec.backend is not None and identity(spec) not in finished
    ]


def by_workers(points: Sequence[LivePoint]) -> list[list[LivePoint]]:
    """Group the live points so that the same workers can serve all points of a group."""
    from fairbench.live.backends.registry import same_workers

    groups: list[list[LivePoint]] = []
    for point in points:
        group = next((one for one in groups if same_workers(one[0].spec, point.spec)), None)
        if group is not None:
            group.append(point)
        elif point.spec.backend is not None:
            groups.append([point])
    return groups


def try_untested(specs: Sequence[ExperimentSpec]) -> None:
    """Try a release newer than the supported ones. Raises UsageError if no point has an engine."""
    from fairbench.live.backends import registry

    engines = [spec for spec in specs if obeys(spec.backend, "server_python")]
    registry.try_untested((engines or list(specs))[0])


def options_of_points(specs: Sequence[ExperimentSpec], flags: LiveFlags) -> LiveOptions | None:
    """Return the options of a sweep, None if it only simulates.

    Raises UsageError if a point of it is impossible here.
    """
    if flags.server_python and not any(obeys(spec.backend, "server_python") for spec in specs):
        raise python_misplaced()
    if all(spec.backend is None for spec in specs):
        return None
    from fairbench.live.backends.base import LiveOptions
    from fairbench.live.backends.registry import check_live

    for group in by_workers([LivePoint("", spec) for spec in specs]):
        spec = group[0].spec
        python = flags.server_python if obeys(spec.backend, "server_python") else None
        check_live(spec, LiveOptions(python))
    return flags.options()
