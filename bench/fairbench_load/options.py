"""Options of live runs (on real servers), and the launchers that flags select."""

from __future__ import annotations

import shlex

from fairbench import doors
from fairbench.errors import UsageError
from fairbench.execute.executors import COMMAND, DEFAULT, LOCAL, LauncherFlags, check_launchers
from fairbench.execute.live_runs import LiveFlags
from fairbench_load.backends.base import LiveOptions
from fairbench_load.launchers import CommandLauncher, Launcher, LocalLauncher


def launcher_named(name: str, flags: LauncherFlags, *, drivers: str = LOCAL) -> Launcher:
    """Return the server launcher with the given name.

    ``drivers`` is the name of the launcher that starts load drivers. Raises UsageError for an
    unknown launcher, or for a flag that neither the launcher ``name`` nor ``drivers`` supports.
    """
    check_launchers(name, flags, drivers=drivers)
    return _launcher(name, flags)


def driver_launcher_named(name: str, flags: LauncherFlags) -> Launcher | None:
    """Return the launcher of load drivers, or None if drivers start on this machine.

    Raises UsageError for an unknown launcher of drivers.
    """
    check_launchers(LOCAL, LauncherFlags(), drivers=name)
    return None if name == LOCAL else _launcher(name, flags)


def _launcher(name: str, flags: LauncherFlags) -> Launcher:
    if name == LOCAL:
        return LocalLauncher()
    if name == COMMAND:
        return _by_command(flags)
    launcher: Launcher = doors.through(doors.LAUNCHER_GROUP, name)(flags.ray_address)
    return launcher


def _by_command(flags: LauncherFlags) -> Launcher:
    try:
        words = shlex.split(flags.launch_command or DEFAULT)
    except ValueError as error:
        raise UsageError(f"--launch-command {flags.launch_command}: {error}") from None
    hosts = [] if flags.hosts is None else [host.strip() for host in flags.hosts.split(",")]
    return CommandLauncher(hosts, words)


def live_options(flags: LiveFlags) -> LiveOptions:
    """Return the options for real servers, with the launchers that the flags name.

    Raises UsageError for an unknown launcher.
    """
    far = driver_launcher_named(flags.driver_launcher, flags.places)
    launcher = launcher_named(flags.launcher, flags.places, drivers=flags.driver_launcher)
    return LiveOptions(
        flags.server_python, flags.ready_timeout_s, flags.headers, launcher, flags.drivers, far
    )
