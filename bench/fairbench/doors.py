"""Doors: packages beside this one that add commands, executors, launchers and engines.

A door registers by an entry point, as a user's package does. The core names no door.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from fairbench.errors import UsageError

COMMAND_GROUP, EXECUTOR_GROUP = "fairbench.commands", "fairbench.executors"
LAUNCHER_GROUP, ENGINE_GROUP = "fairbench.launchers", "fairbench.engines"


class Command(NamedTuple):
    """A command of the command line, whose module is imported only when it is used.

    ``group`` is the heading of ``fairbench --help`` under which ``about``, one line of help,
    stands. ``target`` is ``MODULE:NAME`` of a function or a group of commands. ``studies`` marks
    a command in the package of the studies.
    """

    group: str
    about: str
    target: str
    studies: bool = False


def registered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name. Raises UsageError if two share a name."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if (other := found.setdefault(point.name, point)).value != point.value:
            raise UsageError(
                f"{group}: two installed packages add {point.name!r}: {other.value} and "
                f"{point.value}; uninstall one"
            )
    return found


def plugin_of(engine: str) -> str:
    """Return the package of our plugin inside an engine. Raises UsageError if it is missing."""
    found = registered(ENGINE_GROUP).get(engine)
    if found is None:
        raise UsageError(f"backend {engine}: the package of the plugin is not installed")
    return found.value


def through(group: str, name: str) -> Any:
    """Return what a door registered under a name. Precondition: the name is registered."""
    return registered(group)[name].load()
