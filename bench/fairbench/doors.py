"""Separate packages ("doors") that add commands, schedulers or engines to the core.

Add-on packages register themselves by Python entry points, so the core does not depend on them. The
package of the studies exists only in a source checkout.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.version import DIRECTORY

COMMAND_GROUP, EXECUTOR_GROUP = "fairbench.commands", "fairbench.executors"
LAUNCHER_GROUP, ENGINE_GROUP = "fairbench.launchers", "fairbench.engines"
STUDY_GROUP, CODE_GROUP = "fairbench.studies", "fairbench.engine_code"
BACKEND_GROUP = "fairbench.backends"
FIGURE_GROUP, PAGE_GROUP = "fairbench.figures", "fairbench.pages"
LOG_GROUP = "fairbench.logs"
# the prefix of fairbench's packages; the rest of a package's name is its extra for pip
OURS = "fairbench_"


class Command(NamedTuple):
    """A command whose module is imported only when a user runs the command.

    ``about`` describes the command in ``fairbench --help``, under the heading ``group``. ``target``
    is the ``MODULE:NAME`` of a function or of a group of commands. Commands with a lower ``place``
    come first under the heading, and commands with equal places are in the order of their names.
    """

    group: str
    about: str
    target: str
    place: int = 50


@cache
def _every_entry_point() -> Any:  # The return type depends on the version of Python.
    """Read the entry points of every installed package once per process."""
    return metadata.entry_points()


@cache
def entry_points(group: str) -> EntryPoints:
    """Return the entry points of ``group`` in every installed package."""
    found: EntryPoints = _every_entry_point().select(group=group)
    return found


def registered(group: str) -> Mapping[str, EntryPoint]:
    """Return the installed entry points of ``group`` by name.

    Raises UsageError if two entry points have the same name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group):
        if (other := found.setdefault(point.name, point)).value != point.value:
            raise UsageError(
                f"{group}: two installed packages add {point.name!r}: {other.value} and "
                f"{point.value}; uninstall one of them"
            )
    return found


def with_registered(own: Mapping[str, str], group: str) -> Mapping[str, str]:
    """Return ``own`` and the registered components of a group, as ``module:class`` by name."""
    return {**own, **{name: point.value for name, point in registered(group).items()}}


def plugin_of(engine: str) -> str:
    """Return the package that contains fairbench's plugin for an engine.

    Raises UsageError if the package is not installed.
    """
    found = registered(ENGINE_GROUP).get(engine)
    if found is None:
        raise UsageError(
            f"backend {engine}: no installed package has fairbench's plugin for {engine}; install "
            f"fairbench-llm again, which contains the plugins for SGLang and vLLM"
        )
    return found.value


def through(group: str, name: str, what: str = "") -> Any:
    """Return the object that an installed package registers under a name.

    Precondition: an installed package has registered ``name``.

    Raises UsageError if the package is missing or does not fit this version of fairbench. The error
    message begins with ``what``, or by default with ``name``.
    """
    return loaded(registered(group)[name].value, what or name)


def loaded(target: str, what: str) -> Any:
    """Return the object that ``target`` (``MODULE:NAME``) names in an installed package.

    Raises UsageError if the package is missing or has another version; the message begins with
    ``what``.
    """
    find_in_clone(target)
    try:
        return EntryPoint(what, target, "").load()
    except (ImportError, AttributeError) as error:
        raise not_loaded(what, target, error) from error


def find_in_clone(target: str) -> None:
    """Make the package of ``target`` (``MODULE:NAME``) importable from a source checkout.

    The installed package (wheel) of fairbench does not contain the package of studies. The function
    looks for the studies in the source checkout of this package, and then in a checkout that
    contains the current folder.
    """
    package = target.partition(":")[0].partition(".")[0]
    if not package.startswith(OURS) or find_spec(package) is not None:
        return
    here = Path.cwd()
    for top in (DIRECTORY.resolve().parents[1], here, *here.parents):
        found = top / "studies"
        if (found / package / "__init__.py").is_file() and (top / "bench" / "fairbench").is_dir():
            sys.path.append(str(found))
            return


def not_loaded(what: str, target: str, error: Exception) -> UsageError:
    """Return the error for a ``target`` (``MODULE:NAME``) that could not be imported."""
    package = target.partition(":")[0].partition(".")[0]
    if not (isinstance(error, ModuleNotFoundError) and error.name == package):
        return UsageError(f"{what}: {package} does not fit this version of fairbench: {error}")
    extra = package.removeprefix(OURS)
    advice = ""
    if package.startswith(OURS):
        advice = f": run it in a clone of the repository, or pip install 'fairbench-llm[{extra}]'"
    return UsageError(f"{what}: needs the package {package}, which is not installed{advice}")
