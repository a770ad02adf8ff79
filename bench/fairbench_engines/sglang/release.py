"""Supported releases and options of SGLang, and the proof that the hooks fit."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from fairbench.errors import RunFailed, UsageError
from fairbench.live.plugin_releases import check_function, check_release, installed
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.by_class import unfit_for_classes

SUPPORTED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")  # oldest first
EVICTING = ("0.5.23",)  # releases that support an eviction policy
DISTRIBUTIONS = ("sglang",)


class Off(NamedTuple):
    """The value of a flag that leaves an unsupported feature off, and why it is unsupported."""

    value: Any
    why: str


RANKS = (
    "each rank has its own queue, so credits and deficits would be counted per rank; start more "
    "servers instead"
)
SEES_NO_QUEUE = "prefill and decode servers keep requests in queues that the plugin does not see"
OFF = {
    "dp_size": Off(1, RANKS),
    "enable_dp_attention": Off(False, RANKS),
    "disaggregation_mode": Off("null", SEES_NO_QUEUE),
    "encoder_only": Off(False, SEES_NO_QUEUE),
    "language_only": Off(False, SEES_NO_QUEUE),
    "enable_hierarchical_cache": Off(
        False, "the time that loads a prefix from host memory is charged to no client"
    ),
    "enable_lmcache": Off(
        False, "the time that loads a prefix from host memory is charged to no client"
    ),
    "dllm_algorithm": Off(None, "diffusion models admit requests without asking the scheduler"),
    "lora_drain_wait_threshold": Off(
        0.0, "SGLang would pass over adapters by its clock, whatever the scheduler chooses"
    ),
    "enable_lora_overlap_loading": Off(
        False, "SGLang would pass over adapters by its clock, whatever the scheduler chooses"
    ),
}


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


def resolved(server_args: Any) -> Any:
    """Return the server's arguments as SGLang has resolved them; a release may keep them apart."""
    if not hasattr(server_args, "_resolved_overrides"):
        return server_args
    return import_module("sglang.srt.arg_groups.overrides").resolving_view(server_args)


def check_server(server_args: Any, scheduler: LocalScheduler, *, measures: bool = False) -> None:
    """Raise UsageError if this server is started with something unsupported.

    ``measures`` is true if admission depends on the times of the server's steps.
    """
    for name, off in OFF.items():
        value = getattr(server_args, name, off.value)
        if value and value != off.value:
            raise UsageError(
                f"{_given(name, value)} is not supported with FAIRBENCH_LOCAL: {off.why}"
            )
    if getattr(server_args, "enable_priority_scheduling", False):
        _refuse("--enable-priority-scheduling", unfit_for_classes(scheduler))
    if getattr(server_args, "speculative_algorithm", None) and scheduler.preempts:
        _refuse("--speculative-algorithm", f"{scheduler.name} preempts")
    # Ranks have separate clocks but must make equal decisions.
    refuses = type(scheduler).accepts is not LocalScheduler.accepts
    if refuses or scheduler.preempts or scheduler.reads_clock:
        _one_rank(server_args, f"for {scheduler.name}, which decides by the clock of each rank")
    if measures:
        _one_rank(
            server_args,
            f"because {scheduler.name} or the load cap uses measured step times, which differ "
            "between ranks",
        )


def check_eviction(server_args: Any, policy: str | None) -> None:
    """Raise UsageError if a server cannot evict by a policy, or its ranks would differ."""
    if policy is None:
        return
    for name, why in (
        ("disable_radix_cache", "leaves nothing to evict"),
        ("speculative_algorithm", "takes memory for drafts, which the policy does not see"),
        ("is_embedding", "loses the clients of requests"),
    ):
        if value := getattr(server_args, name, None):
            _refuse(_given(name, value), f"it {why}", f"eviction {policy}")
    if policy == "retention":
        _one_rank(server_args, f"for eviction {policy}, which reads the clock of each rank")


def _one_rank(server_args: Any, why: str) -> None:
    for name in ("tp_size", "pp_size"):
        if getattr(server_args, name, 1) > 1:
            raise UsageError(f"{_given(name, getattr(server_args, name))}: must be 1 {why}")


def _given(name: str, value: Any) -> str:
    """Return a flag as it is given."""
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {value}"


def _refuse(flag: str, why: str | None, with_what: str = "this scheduler") -> None:
    if why is not None:
        raise UsageError(f"{flag} is not supported with {with_what}: {why}")
