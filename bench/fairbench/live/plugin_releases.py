"""Releases of an engine: which are supported, and whether an unknown newer one is tried."""

from __future__ import annotations

import inspect
import os
import pkgutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from fairbench.errors import UsageError

UNTESTED = "FAIRBENCH_ALLOW_UNTESTED_RELEASE"  # 1 means that a newer release is tried


def installed(distributions: Sequence[str]) -> str:
    """Return the version of the first distribution that is installed, "" if none is.

    The version is read from the distribution's metadata, without importing the engine.
    """
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def check_release(engine: str, found: str, supported: Sequence[str]) -> bool:
    """Return whether a release is supported; False for a newer one that should be tried.

    ``supported`` are the releases, oldest first. Raises UsageError for any other release, or
    without a release.
    """
    if not found:
        raise UsageError(f"{engine} is not installed in this Python")
    release = found.partition("+")[0]
    if release in supported:
        return True
    oldest, newest = supported[0], supported[-1]
    window = f"the schedulers run inside {oldest} to {newest}"
    if _numbers(release) <= _numbers(newest):
        raise UsageError(f"{engine} {found} is not supported: {window}")
    if os.environ.get(UNTESTED) != "1":
        raise UsageError(
            f"{engine} {found} is not supported: {window}; to try a newer release, give "
            f"--allow-untested-release, or set {UNTESTED}=1 in the server's environment"
        )
    return False


def check_function(engine: str, target: str, expected: tuple[str, ...]) -> None:
    """Raise UsageError unless the engine has this function and its parameters begin with those."""
    try:
        function = pkgutil.resolve_name(target)
    except AttributeError as error:
        raise UsageError(f"{engine} has no {target}: {error}") from None
    except Exception as error:  # any exception of a broken dependency
        raise UsageError(f"{engine} cannot be imported: {_cause(error)}") from None
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise UsageError(
            f"{engine}'s {target} takes the arguments {', '.join(found)} instead of "
            f"{', '.join(expected)}"
        )


def _cause(error: BaseException) -> str:
    """Return the first line of the root cause of a failed import."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return f"{type(error).__name__}: {error}".splitlines()[0]


def allow_untested() -> None:
    """Have this process, and servers that it starts, try an unknown newer release."""
    os.environ[UNTESTED] = "1"


def untested_environment() -> dict[str, str]:
    """Return the environment that makes a server elsewhere try the same as this process."""
    return {UNTESTED: "1"} if os.environ.get(UNTESTED) == "1" else {}


def _numbers(release: str) -> tuple[int, ...]:
    numbers = []
    for part in release.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
