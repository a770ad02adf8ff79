"""The options of live runs, as the user gives them: what a simulation is told, it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.backend_checks import RunOptions, check_run_options
from fairbench.execute.launchers import (
    LOCAL,
    LauncherFlags,
    check_driver_launcher,
    check_launcher,
    driver_launcher_named,
    launcher_named,
)

if TYPE_CHECKING:
    from fairbench.live.backends.base import LiveOptions


class LiveFlags(NamedTuple):
    """The user's choice of how servers and drivers start: decides no record, is stored nowhere."""

    server_python: str | None = None
    ready_timeout_s: float = 600.0
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
    """Return the options of a live run, or None for a simulation.

    Raises UsageError if the run is impossible here, or if nothing of it heeds a flag.
    """
    if spec.backend is not None:
        from fairbench.live.backends.registry import check_live

        options = flags.options()
        check_live(spec, options)
        return options
    check_driver_launcher(flags.driver_launcher)
    check_launcher(flags.launcher, flags.places, drivers=flags.driver_launcher)
    check_run_options(
        spec,
        RunOptions(
            headers=bool(flags.headers),
            server_python=flags.server_python is not None,
            launcher=flags.launcher != LOCAL,
            driver_launcher=flags.driver_launcher != LOCAL,
            drivers=flags.drivers,
        ),
    )
    return None
