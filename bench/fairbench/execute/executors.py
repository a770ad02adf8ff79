"""Choice of an executor, which runs simulations, and checks of launchers, which start servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from fairbench import doors
from fairbench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from fairbench.execute.tasks import Executor


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


DEFAULT = "ssh -o BatchMode=yes {host}"  # the default command that runs a shell line on a host


class LauncherFlags(NamedTuple):
    """The user's flags that decide where servers start."""

    ray_address: str | None = None
    hosts: str | None = None
    launch_command: str | None = None


_FROM_DOORS = tuple(doors.registered(doors.LAUNCHER_GROUP))
COMMAND = "command"
# the flags that each launcher uses
LAUNCHERS: Mapping[str, frozenset[str]] = {
    LOCAL: frozenset(),
    **dict.fromkeys(_FROM_DOORS, frozenset({"ray_address"})),
    COMMAND: frozenset({"hosts", "launch_command"}),
}

# The launcher ``command`` cannot start drivers, because it would show a driver's secret key in a
# command line, which every user of a host can see.
DRIVER_LAUNCHERS = (LOCAL, *_FROM_DOORS)


def check_launchers(name: str, flags: LauncherFlags, *, drivers: str) -> None:
    """Raise UsageError for an unknown launcher, or for a flag that no named launcher supports."""
    if drivers not in DRIVER_LAUNCHERS:
        raise unknown_name("driver launcher", drivers, DRIVER_LAUNCHERS)
    if name not in LAUNCHERS:
        raise unknown_name("launcher", name, LAUNCHERS)
    for flag, value in flags._asdict().items():
        if value is not None and flag not in LAUNCHERS[name] | LAUNCHERS[drivers]:
            owner = next(other for other, used in LAUNCHERS.items() if flag in used)
            raise UsageError(f"--{flag.replace('_', '-')} {value}: needs --launcher {owner}")
