"""The launchers by the names of ``--launcher``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fairbench import doors
from fairbench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from fairbench.live.launchers.base import Launcher

DEFAULT = "ssh -o BatchMode=yes {host}"  # the command that runs words on a host


class LauncherFlags(NamedTuple):
    """The user's choice of places for servers. None means not given."""

    ray_address: str | None = None
    hosts: str | None = None
    launch_command: str | None = None


class Way(NamedTuple):
    """A launcher: its constructor, and the flags that it uses."""

    make: Callable[[LauncherFlags], Launcher]
    obeys: frozenset[str] = frozenset()


def _here(_: LauncherFlags) -> Launcher:
    from fairbench.live.launchers.base import LocalLauncher

    return LocalLauncher()


def _by_command(flags: LauncherFlags) -> Launcher:
    from fairbench.live.launchers.command import CommandLauncher

    try:
        words = shlex.split(flags.launch_command or DEFAULT)
    except ValueError as error:
        raise UsageError(f"--launch-command {flags.launch_command}: {error}") from None
    hosts = [] if flags.hosts is None else [host.strip() for host in flags.hosts.split(",")]
    return CommandLauncher(hosts, words)


def _by_door(name: str) -> Callable[[LauncherFlags], Launcher]:
    def made(flags: LauncherFlags) -> Launcher:
        launcher: Launcher = doors.through(doors.LAUNCHER_GROUP, name)(flags.ray_address)
        return launcher

    return made


_FROM_DOORS = tuple(doors.registered(doors.LAUNCHER_GROUP))
LOCAL = "local"
LAUNCHERS: Mapping[str, Way] = {
    LOCAL: Way(_here),
    **{name: Way(_by_door(name), frozenset({"ray_address"})) for name in _FROM_DOORS},
    "command": Way(_by_command, frozenset({"hosts", "launch_command"})),
}

# Command lines are visible in a host's process list, and drivers have a secret.
DRIVER_LAUNCHERS = (LOCAL, *_FROM_DOORS)


def launcher_named(name: str, flags: LauncherFlags, *, drivers: str = LOCAL) -> Launcher:
    """Return a launcher by name. The same launcher may also start the ``drivers``.

    Raises UsageError for an unknown name, or a flag that neither launcher supports.
    """
    check_launchers(name, flags, drivers=drivers)
    return LAUNCHERS[name].make(flags)


def driver_launcher_named(name: str, flags: LauncherFlags) -> Launcher | None:
    """Return the launcher of drivers, None for this machine. Raises UsageError if it is unknown."""
    check_launchers(LOCAL, LauncherFlags(), drivers=name)
    return None if name == LOCAL else LAUNCHERS[name].make(flags)


def check_launchers(name: str, flags: LauncherFlags, *, drivers: str) -> None:
    """Raise UsageError as ``launcher_named`` does, or for an unknown launcher of ``drivers``."""
    if drivers not in DRIVER_LAUNCHERS:
        raise unknown_name("driver launcher", drivers, DRIVER_LAUNCHERS)
    if name not in LAUNCHERS:
        raise unknown_name("launcher", name, LAUNCHERS)
    for flag, value in flags._asdict().items():
        if value is not None and flag not in LAUNCHERS[name].obeys | LAUNCHERS[drivers].obeys:
            owner = next(other for other, way in LAUNCHERS.items() if flag in way.obeys)
            raise UsageError(f"--{flag.replace('_', '-')} {value}: needs --launcher {owner}")
