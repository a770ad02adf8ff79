"""The executors by the names of ``--executor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairbench import doors
from fairbench.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from fairbench.execute.executor import Executor

LOCAL = "local"
EXECUTORS = (LOCAL, *doors.registered(doors.EXECUTOR_GROUP))


def check_executor(name: str, ray_address: str | None = None) -> None:
    """Raise UsageError for an unknown name, and for an address without Ray's executor."""
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS)
    if name == LOCAL and ray_address is not None:
        raise UsageError(f"--ray-address {ray_address}: needs --executor ray")


def executor_named(name: str, ray_address: str | None = None) -> Executor:
    """Return an executor by name; the address is that of a Ray cluster.

    Raises UsageError as ``check_executor`` does, and if Ray is missing.
    """
    check_executor(name, ray_address)
    if name == LOCAL:
        from fairbench.execute.local_processes import LocalProcesses

        return LocalProcesses()
    executor: Executor = doors.through(doors.EXECUTOR_GROUP, name)(ray_address)
    return executor
