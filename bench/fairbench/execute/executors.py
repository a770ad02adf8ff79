"""Choice of an executor, which runs simulations, and a launcher, which starts servers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from fairbench import doors, live
from fairbench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from fairbench.execute.tasks import Executor
    from fairbench_load.launchers import Launcher


LOCAL = "local"
EXECUTORS = (LOCAL, *doors.registered(doors.EXECUTOR_GROUP))


def check_executor(name: str, ray_address: str | None = None) -> None:
    """Raise UsageError for an unknown executor, or a Ray address without the Ray executor."""
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS)
    if name == LOCAL and ray_address is not None:
        raise UsageError(f"--ray-address {ray_address}: needs --executor ray")


def executor_named(name: str, ray_address: str | None = None) -> Executor:
    """Return an executor by name; ``ray_address`` is the address of a Ray cluster.

    Raises UsageError as ``check_executor`` does, or if the package Ray is missing.
    """
    check_executor(name, ray_address)
    if name == LOCAL:
        from fairbench.execute.tasks import LocalProcesses

        return LocalProcesses()
    executor: Executor = doors.through(doors.EXECUTOR_GROUP, name)(ray_address)
    return executor


DEFAULT = "ssh -o BatchMode=yes {host}"  # the command that runs a shell line on a host


class LauncherFlags(NamedTuple):
    """The user's flags that decide where servers start."""

    ray_address: str | None = None
    hosts: str | None = None
    launch_command: str | None = None


class Way(NamedTuple):
    """A launcher: its constructor, and the names of the flags that the constructor uses."""

    make: Callable[[LauncherFlags], Launcher]
    obeys: frozenset[str] = frozenset()


def _by_command(flags: LauncherFlags) -> Launcher:
    try:
        words = shlex.split(flags.launch_command or DEFAULT)
    except ValueError as error:
        raise UsageError(f"--launch-command {flags.launch_command}: {error}") from None
    hosts = [] if flags.hosts is None else [host.strip() for host in flags.hosts.split(",")]
    return live.CommandLauncher(hosts, words)


def _by_door(name: str) -> Callable[[LauncherFlags], Launcher]:
    def made(flags: LauncherFlags) -> Launcher:
        launcher: Launcher = doors.through(doors.LAUNCHER_GROUP, name)(flags.ray_address)
        return launcher

    return made


_FROM_DOORS = tuple(doors.registered(doors.LAUNCHER_GROUP))
LAUNCHERS: Mapping[str, Way] = {
    LOCAL: Way(lambda _: live.LocalLauncher()),
    **{name: Way(_by_door(name), frozenset({"ray_address"})) for name in _FROM_DOORS},
    "command": Way(_by_command, frozenset({"hosts", "launch_command"})),
}

# The launcher ``command`` cannot start drivers, because it would show a driver's secret key in a
# command line, which every user of a host can see.
DRIVER_LAUNCHERS = (LOCAL, *_FROM_DOORS)


def launcher_named(name: str, flags: LauncherFlags, *, drivers: str = LOCAL) -> Launcher:
    """Return a launcher of servers by name.

    ``drivers`` is the name of the launcher that starts load drivers. Raises UsageError for an
    unknown name, or for a flag that neither of the two launchers supports.
    """
    check_launchers(name, flags, drivers=drivers)
    return LAUNCHERS[name].make(flags)


def driver_launcher_named(name: str, flags: LauncherFlags) -> Launcher | None:
    """Return the launcher of load drivers, or None if drivers start on this machine.

    Raises UsageError for an unknown launcher of drivers.
    """
    check_launchers(LOCAL, LauncherFlags(), drivers=name)
    return None if name == LOCAL else LAUNCHERS[name].make(flags)


def check_launchers(name: str, flags: LauncherFlags, *, drivers: str) -> None:
    """Raise UsageError for an unknown launcher, or for a flag that no named launcher supports."""
    if drivers not in DRIVER_LAUNCHERS:
        raise unknown_name("driver launcher", drivers, DRIVER_LAUNCHERS)
    if name not in LAUNCHERS:
        raise unknown_name("launcher", name, LAUNCHERS)
    for flag, value in flags._asdict().items():
        if value is not None and flag not in LAUNCHERS[name].obeys | LAUNCHERS[drivers].obeys:
            owner = next(other for other, way in LAUNCHERS.items() if flag in way.obeys)
            raise UsageError(f"--{flag.replace('_', '-')} {value}: needs --launcher {owner}")
