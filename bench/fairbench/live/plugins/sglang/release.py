"""Which SGLang releases the hooks fit, the proof that they do, and with which servers."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fairbench.errors import RunFailed, UsageError
from fairbench.schedulers.base import LocalScheduler

SUPPORTED = ("0.5.17", "0.5.23")
# SGLang's flag -> the value that leaves it off. Each changes who is admitted behind our back.
OFF = {
    "disaggregation_mode": "null",
    "dllm_algorithm": None,
    "enable_hierarchical_cache": False,
    "enable_lora": None,
    "enable_priority_scheduling": False,
    "pp_size": 1,
}


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


def check_target(target: str, parameters: tuple[str, ...]) -> None:
    """Raise UsageError unless SGLang has this method and its parameters begin with those."""
    try:
        function = pkgutil.resolve_name(target)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"SGLang has no {target}: {error}") from None
    found = tuple(inspect.signature(function).parameters)
    expected = ("self", *parameters)
    if found[: len(expected)] != expected:
        raise UsageError(f"SGLang's {target} takes {', '.join(found)}, not {', '.join(expected)}")


def require_applied(targets: Iterable[str]) -> None:
    """Raise RunFailed unless SGLang has wrapped every method: it only logs a failure to do so."""
    for target in targets:
        if not hasattr(pkgutil.resolve_name(target), "__wrapped__"):
            raise RunFailed(f"SGLang did not apply fairbench's hook around {target}")


def check_server(server_args: Any, scheduler: LocalScheduler) -> None:
    """Raise UsageError if this server is started with something unsupported."""
    for name, off in OFF.items():
        value = getattr(server_args, name)
        if value and value != off:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {value} is not supported with FAIRBENCH_LOCAL")
    # Each rank has a clock of its own, and all must decide alike.
    refuses = type(scheduler).accepts is not LocalScheduler.accepts
    if refuses and server_args.tp_size > 1:
        raise UsageError(f"--tp-size {server_args.tp_size}: {scheduler.name} works with 1 only")
