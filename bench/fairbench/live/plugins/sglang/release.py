"""Supported releases: which SGLang the hooks fit, and the proof that they do."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable

from fairbench.errors import RunFailed, UsageError
from fairbench.live.plugins.releases import check_function, check_release, installed

SUPPORTED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")  # oldest first
EVICTING = ("0.5.23",)  # those of them in which an eviction policy has a place
DISTRIBUTIONS = ("sglang",)


def check_version() -> str:
    """Return the installed SGLang's version. Raises UsageError unless it is supported."""
    found = installed(DISTRIBUTIONS)
    check_release("SGLang", found, SUPPORTED)
    return found


def check_evicting() -> str:
    """Return the installed SGLang's version. Raises UsageError if policies cannot evict in it."""
    found = check_version()
    release = found.partition("+")[0]
    if release in SUPPORTED and release not in EVICTING:
        raise UsageError(
            f"SGLang {found} cannot evict by a policy of fairbench, which needs "
            f"{' or '.join(EVICTING)}; install that, or leave eviction out"
        )
    return found


def check_target(target: str, expected: tuple[str, ...]) -> None:
    """Raise UsageError unless SGLang has this method and its parameters begin with those."""
    check_function("SGLang", target, expected)


def require_applied(targets: Iterable[str]) -> None:
    """Raise RunFailed unless SGLang has wrapped every method: it only logs a failure to do so."""
    for target in targets:
        if not hasattr(pkgutil.resolve_name(target), "__wrapped__"):
            raise RunFailed(f"SGLang did not apply fairbench's hook around {target}")
