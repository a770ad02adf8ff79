"""Limits: what a SGLang server must not be started with, since it would escape the schedulers."""

from __future__ import annotations

from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import LocalScheduler

# SGLang's flag -> the value that leaves it off. Each changes who is admitted behind our back.
OFF = {
    "disaggregation_mode": "null",
    "dllm_algorithm": None,
    "enable_hierarchical_cache": False,
    "enable_lora": None,
    "enable_priority_scheduling": False,
    "pp_size": 1,
}

# Each leaves several schedulers in one server.
RANKED = {"dp_size": 1, "enable_dp_attention": False}


def check_server(server_args: Any, scheduler: LocalScheduler, *, measures: bool = False) -> None:
    """Raise UsageError if this server is started with something unsupported.

    Args:
        server_args: Arguments of the SGLang server.
        scheduler: Scheduler that the server is to use.
        measures: Whether admission depends on how long the server's steps take.
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
    # Each rank has a clock of its own, and all must decide alike.
    refuses = type(scheduler).accepts is not LocalScheduler.accepts
    if (refuses or scheduler.preempts) and server_args.tp_size > 1:
        raise UsageError(f"--tp-size {server_args.tp_size}: must be 1 for {scheduler.name}")
    if measures and server_args.tp_size > 1:
        raise UsageError(
            f"--tp-size {server_args.tp_size}: must be 1, because {scheduler.name} or the "
            "load cap uses measured step times, which differ between ranks"
        )
