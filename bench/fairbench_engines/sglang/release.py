"""Supported releases and options of SGLang, and checks that the plugin's hooks fit."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from fairbench.errors import RunFailed, UsageError
from fairbench.hardware.engine_params import releases_from
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.eviction.registry import eviction_class
from fairbench.schedulers.registry import local_class
from fairbench_engines.rank_accounts import ranks_of
from fairbench_load.by_class import unfit_for_classes
from fairbench_load.plugin_config import check_function, check_release, installed

# releases of SGLang that the plugin supports, the oldest first
SUPPORTED = ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23")
EVICTING = ("0.5.23",)  # releases of SGLang in which fairbench's eviction policies work
DISTRIBUTIONS = ("sglang",)


class OffFlag(NamedTuple):
    """The only supported value of an SGLang flag, and why other values are not supported."""

    value: Any
    why: str


TOGETHER = (
    "its ranks wait for each other in every step, and the plugin was never tried there; use "
    "--dp-size alone, or start more servers"
)
HAS_NO_CLIENTS = "an encoder serves images in order of arrival and does not know their clients"
OFF = {
    "enable_dp_attention": OffFlag(False, TOGETHER),
    "attn_dp_size": OffFlag(1, TOGETHER),
    "encoder_only": OffFlag(False, HAS_NO_CLIENTS),
    "enable_lmcache": OffFlag(
        False, "LMCache replaces SGLang's prefix tree, and the plugin is not tested with its tree"
    ),
    "dllm_algorithm": OffFlag(None, "diffusion models admit requests without asking the scheduler"),
}


class Hook(NamedTuple):
    """A hook around a function of SGLang, with the names of the function's first parameters.

    ``parameters`` omits ``self``; a ``static`` function has no ``self``.
    """

    method: Callable[..., Any]
    parameters: tuple[str, ...] = ()
    static: bool = False

    @property
    def expected(self) -> tuple[str, ...]:
        return self.parameters if self.static else ("self", *self.parameters)


def check_version() -> str:
    """Return the version of the installed SGLang; raise UsageError if it is not supported."""
    found = installed(DISTRIBUTIONS)
    check_release("SGLang", found, SUPPORTED)
    return found


def check_evicting() -> str:
    """Return the version of the installed SGLang; raise UsageError if it lacks eviction support."""
    found = check_version()
    release = found.partition("+")[0]
    if release in SUPPORTED and release not in EVICTING:
        raise UsageError(
            f"SGLang {found} does not support fairbench's eviction policies; install SGLang "
            f"{' or '.join(EVICTING)}, or leave the setting eviction out"
        )
    return found


def check_policy(policy: str) -> None:
    """Raise UsageError if the installed SGLang lacks the scheduling policy ``policy``."""
    found, since = installed(DISTRIBUTIONS), local_class(policy).sglang_since
    having = releases_from(since or SUPPORTED[0])
    if found.partition("+")[0] in set(SUPPORTED) - set(having):
        raise UsageError(
            f"SGLang {found} has no schedule_policy {policy!r}; use SGLang {' or '.join(having)}"
        )


def check_target(target: str, expected: tuple[str, ...]) -> None:
    """Raise UsageError unless the parameters of SGLang's ``target`` begin with ``expected``."""
    check_function("SGLang", target, expected)


def require_applied(targets: Iterable[str]) -> None:
    """Raise RunFailed if SGLang failed to wrap a function, which SGLang itself only logs."""
    for target in targets:
        if not hasattr(pkgutil.resolve_name(target), "__wrapped__"):
            raise RunFailed(f"SGLang did not apply fairbench's hook around {target}")


def dp_rank_of(scheduler: Any) -> int:
    """Return the data-parallel rank of an SGLang scheduler, in any supported release."""
    owner = scheduler
    for _ in range(2):
        if hasattr(owner, "dp_rank"):
            return int(owner.dp_rank or 0)
        owner = getattr(owner, "ps", None)
    context = import_module("sglang.srt.runtime_context")
    return int(context.get_parallel().dp_rank or 0)


def resolved(server_args: Any) -> Any:
    """Return the server's arguments with the values that SGLang has derived from the flags."""
    if not hasattr(server_args, "_resolved_overrides"):
        return server_args
    return import_module("sglang.srt.arg_groups.overrides").resolving_view(server_args)


def check_server(server_args: Any, scheduler: LocalScheduler, *, measures: bool = False) -> None:
    """Raise UsageError if an argument of the server is not supported.

    ``measures`` is True if admission depends on measured step times.
    """
    for name, off in OFF.items():
        value = getattr(server_args, name, off.value)
        if value and value != off.value:
            raise UsageError(
                f"{_given(name, value)} is not supported with FAIRBENCH_LOCAL: {off.why}"
            )
    if getattr(server_args, "dp_size", 1) > 1:
        _check_ranks(server_args, scheduler)
    if getattr(server_args, "enable_priority_scheduling", False):
        _refuse("--enable-priority-scheduling", unfit_for_classes(scheduler))
    refuses = type(scheduler).accepts is not LocalScheduler.accepts
    if (mode := getattr(server_args, "disaggregation_mode", "null")) != "null":
        _check_disaggregated(server_args, mode, scheduler, refuses=refuses)
    # Tensor-parallel ranks must make the same decisions, but each rank has its own clock.
    if refuses or scheduler.preempts or scheduler.reads_clock:
        _one_rank(server_args, f"for {scheduler.name}, which decides by the clock of each rank")
    if measures:
        _one_rank(
            server_args,
            f"because {scheduler.name} or the load cap uses measured step times, which differ "
            "between ranks",
        )


def _check_ranks(server_args: Any, scheduler: LocalScheduler) -> None:
    flag = f"--dp-size {server_args.dp_size}"
    if ranks_of(scheduler) is not None:
        why = "because the processes of a rank would hear of other ranks at different times"
        _one_rank(server_args, f"with {flag} and {scheduler.name}, {why}")
    if getattr(server_args, "nnodes", 1) > 1:
        _refuse(flag, "the ranks exchange charges in the memory of one host", "--nnodes")
    if getattr(server_args, "enable_priority_scheduling", False):
        why = "each priority class has its own service counts, which ranks do not exchange"
        _refuse(flag, why, "--enable-priority-scheduling")


def _check_disaggregated(
    server_args: Any, mode: str, scheduler: LocalScheduler, *, refuses: bool
) -> None:
    flag = f"--disaggregation-mode {mode}"
    if refuses:
        _refuse(flag, f"the other server would wait for a request that {scheduler.name} refuses")
    if scheduler.preempts:
        _refuse(flag, f"{scheduler.name} preempts, and prompts and outputs run on separate servers")
    if getattr(server_args, "pp_size", 1) > 1:
        _refuse(flag, "the stages of a pipeline agree on an order of their own", "--pp-size")
    if getattr(server_args, "dp_size", 1) > 1:
        _refuse(flag, "the plugin was never tried with ranks of such servers", "--dp-size")


def check_eviction(server_args: Any, policy: str | None) -> None:
    """Raise UsageError if the server's arguments do not allow the eviction policy ``policy``."""
    if policy is None:
        return
    for name, why in (
        ("disable_radix_cache", "leaves nothing to evict"),
        ("disaggregation_mode", "keeps prompts for another server, which the policy does not see"),
        ("enable_hierarchical_cache", "moves prefixes to the host, which the policy does not see"),
        ("speculative_algorithm", "takes memory for drafts, which the policy does not see"),
        ("is_embedding", "loses the clients of requests"),
    ):
        if (value := getattr(server_args, name, None)) and value != "null":
            _refuse(_given(name, value), f"it {why}", f"eviction {policy}")
    if eviction_class(policy).reads_clock:
        _one_rank(server_args, f"for eviction {policy}, which reads the clock of each rank")


def _one_rank(server_args: Any, why: str) -> None:
    for name in ("tp_size", "pp_size"):
        if getattr(server_args, name, 1) > 1:
            raise UsageError(f"{_given(name, getattr(server_args, name))}: must be 1 {why}")


def _given(name: str, value: Any) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {value}"


def _refuse(flag: str, why: str | None, with_what: str = "this scheduler") -> None:
    if why is not None:
        raise UsageError(f"{flag} is not supported with {with_what}: {why}")
