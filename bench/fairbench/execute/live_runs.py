"""Options of live runs, and the grouping of runs that can share servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairbench import live
from fairbench.config import ExperimentSpec, identity
from fairbench.config.flags import READY_S
from fairbench.config.serving import check_run_options, obeys, python_misplaced
from fairbench.execute.executors import (
    LOCAL,
    LauncherFlags,
    check_launchers,
    driver_launcher_named,
    launcher_named,
)
from fairbench.results.experiments import point_names
from fairbench.results.store import SweepStore

if TYPE_CHECKING:
    from fairbench_load.backends.base import LiveOptions


class LiveFlags(NamedTuple):
    """The user's flags that decide how servers and drivers start, but not the records."""

    server_python: str | None = None
    ready_timeout_s: float = READY_S
    headers: Mapping[str, str] = {}
    launcher: str = LOCAL
    places: LauncherFlags = LauncherFlags()
    drivers: int = 1
    driver_launcher: str = LOCAL

    def options(self) -> LiveOptions:
        """Return the options for real servers, with the launchers that the flags name.

        Raises UsageError for an unknown launcher.
        """
        far = driver_launcher_named(self.driver_launcher, self.places)
        launcher = launcher_named(self.launcher, self.places, drivers=self.driver_launcher)
        return live.LiveOptions(
            self.server_python, self.ready_timeout_s, self.headers, launcher, self.drivers, far
        )


def live_options(spec: ExperimentSpec, flags: LiveFlags) -> LiveOptions | None:
    """Return the options of a live run, or None if the experiment is simulated.

    Raises UsageError if the run is impossible on this machine, or if a flag has no effect.
    """
    if spec.backend is not None:
        options = flags.options()
        live.check_live(spec, options)
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
    """A run of a sweep that takes place on real servers."""

    name: str
    spec: ExperimentSpec


def live_points_left(store: SweepStore, specs: Sequence[ExperimentSpec]) -> list[LivePoint]:
    """Return a sweep's unfinished runs on real servers, in the order of the sweep."""
    finished = store.finished()
    return [
        LivePoint(name, spec)
        for spec, name in zip(specs, point_names(specs), strict=True)
        if spec.backend is not None and identity(spec) not in finished
    ]


def by_workers(points: Sequence[LivePoint]) -> list[list[LivePoint]]:
    """Group runs on real servers so that the runs of a group can share workers."""
    groups: list[list[LivePoint]] = []
    for point in points:
        group = next((one for one in groups if live.same_workers(one[0].spec, point.spec)), None)
        if group is not None:
            group.append(point)
        elif point.spec.backend is not None:
            groups.append([point])
    return groups


def try_untested(specs: Sequence[ExperimentSpec]) -> None:
    """Allow engine releases newer than the supported releases.

    Raises UsageError if no run uses an engine's real server.
    """
    from fairbench_load.backends import workers

    engines = [spec for spec in specs if obeys(spec.backend, "server_python")]
    workers.try_untested((engines or list(specs))[0])


def options_of_points(specs: Sequence[ExperimentSpec], flags: LiveFlags) -> LiveOptions | None:
    """Return the options of a sweep's live runs, or None for a sweep of simulations.

    Raises UsageError if a run of the sweep is impossible on this machine.
    """
    if flags.server_python and not any(obeys(spec.backend, "server_python") for spec in specs):
        raise python_misplaced()
    if all(spec.backend is None for spec in specs):
        return None

    for group in by_workers([LivePoint("", spec) for spec in specs]):
        spec = group[0].spec
        python = flags.server_python if obeys(spec.backend, "server_python") else None
        live.check_live(spec, live.LiveOptions(python))
    return flags.options()
