"""Supported releases and options of SGLang, and the proof that the hooks fit."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from fairbench.errors import RunFailed, UsageError
from fairbench.live.plugins.releases import check_function, check_release, installed
from fairbench.schedulers.base import LocalScheduler

SUPPORTED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")  # oldest first
EVICTING = ("0.5.23",)  # releases that support an eviction policy
DISTRIBUTIONS = ("sglang",)
# SGLang's flag -> the value that turns the feature off. Each of these features changes admissions
# without the plugin.
OFF = {
    "disaggregation_mode": "null",
    "dllm_algorithm": None,
    "enable_hierarchical_cache": False,
    "enable_lora": None,
    "enable_priority_scheduling": False,
    "pp_size": 1,
}
# Each of these creates several schedulers in one server.
RANKED = {"dp_size": 1, "enable_dp_attention": False}


class Hook(NamedTuple):
    """A hook around one of SGLang's functions, with the names of its first parameters.

    The names exclude ``self``, unless the function is ``static``.
    """

    method: Callable[..., Any]
    parameters: tuple[str, ...] = ()
    static: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        return self.parameters if self.static else ("self", *self.parameters)


def check_version() -> str:
    """Return the installed SGLang's version. Raises UsageError unless it is supported."""
    found = installed(DISTRIBUTIONS)
    check_release("SGLang", found, SUPPORTED)
    return found


def check_evicting() -> str:
    """Return the installed SGLang's version.

    Raises UsageError if policies cannot evict in this version.
    """
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


def check_server(server_args: Any, scheduler: LocalScheduler, *, measures: bool = False) -> None:
    """Raise UsageError if this server is started with something unsupported.

    ``measures`` is true if admission depends on the times of the server's steps.
    """
    for name, off in OFF.items():
        value = getattr(server_args, name)
        if value and value != off:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {value} is not supported with FAIRBENCH_LOCAL")
    for name, off in RANKED.items():
        value = getattr(server_args, name, off)
        if value and value != off:
            flag = "--" + name.replace("_", "-")
            raise UsageError(
                f"{flag} {value} is not supported with FAIRBENCH_LOCAL: each rank has its "
                "own queue, so credits and deficits would be counted per rank; start "
                "more servers instead"
            )
    # Ranks have separate clocks but must make equal decisions.
    refuses = type(scheduler).accepts is not LocalScheduler.accepts
    if (refuses or scheduler.preempts) and server_args.tp_size > 1:
        raise UsageError(f"--tp-size {server_args.tp_size}: must be 1 for {scheduler.name}")
    if measures and server_args.tp_size > 1:
        raise UsageError(
            f"--tp-size {server_args.tp_size}: must be 1, because {scheduler.name} or the "
            "load cap uses measured step times, which differ between ranks"
        )
