"""Supported releases: which SGLang the hooks fit, and the proof that they do."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from fairbench.errors import RunFailed, UsageError

SUPPORTED = ("0.5.17", "0.5.23")


def check_version() -> str:
    """The installed SGLang's version. Raises UsageError unless it is supported."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        raise UsageError("SGLang is not installed in this Python") from None
    if found not in SUPPORTED:
        raise UsageError(
            f"SGLang {found} is not supported: the schedulers run inside {' and '.join(SUPPORTED)}"
        )
    return found


def check_target(target: str, expected: tuple[str, ...]) -> None:
    """Raise UsageError unless SGLang has this method and its parameters begin with those."""
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"SGLang has no {target}: {error}") from None
    found = tuple(inspect.signature(function).parameters)
    if found[: len(expected)] != expected:
        raise UsageError(f"SGLang's {target} takes {', '.join(found)}, not {', '.join(expected)}")


def require_applied(targets: Iterable[str]) -> None:
    """Raise RunFailed unless SGLang has wrapped every method: it only logs a failure to do so."""
    for target in targets:
        if not hasattr(pkgutil.resolve_name(target), "__wrapped__"):
            raise RunFailed(f"SGLang did not apply fairbench's hook around {target}")
