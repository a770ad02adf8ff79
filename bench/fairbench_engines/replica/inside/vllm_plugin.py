"""Fairbench's plugin, which replaces vLLM's scheduler class in the process of a replica.

``packages.provide`` must be called before this module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from fairbench_engines.replica.inside.plugin import config_of
from fairbench_engines.vllm import scheduler
from fairbench_engines.vllm.eviction import check_targets
from fairbench_engines.vllm.release import check_config


def vllm_class(told: Mapping[str, Any], now_s: Callable[[], float]) -> type:
    """Return the plugin's scheduler class, which reads the simulator's clock.

    Args:
        told: The scheduler's configuration, as the simulator sends it.
        now_s: A function that returns the simulator's time in seconds.
    """
    config = config_of(told)
    if config.eviction is not None:
        check_targets()

    def plugin_of(vllm_config: Any) -> Any:
        check_config(vllm_config, config)
        return config

    # Unlike on a real server, the plugin must not read its configuration from environment
    # variables, or exit after an error.
    vars(scheduler).update(plugin_of=plugin_of, one_line=nullcontext)

    class ClockedScheduler(scheduler.VLLMScheduler):
        pass

    ClockedScheduler.now_s = staticmethod(now_s)
    return ClockedScheduler
