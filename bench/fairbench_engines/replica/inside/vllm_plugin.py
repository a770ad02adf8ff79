"""Fairbench's plugin as vLLM's scheduler class, in vLLM's Python. Needs ``packages.provide``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from fairbench_engines.replica.inside.plugin import config_of
from fairbench_engines.vllm import scheduler
from fairbench_engines.vllm.release import check_config


def vllm_class(told: Mapping[str, Any], now_s: Callable[[], float]) -> type:
    """Return the scheduler class of the plugin, with the simulator's clock.

    Args:
        told: Configuration of fairbench's scheduler, as the simulator sends it.
        now_s: The simulator's clock.
    """
    config = config_of(told)

    def plugin_of(vllm_config: Any) -> Any:
        check_config(vllm_config, config)
        return config

    # a server reads variables of the environment instead, and ends at an error
    vars(scheduler).update(plugin_of=plugin_of, one_line=nullcontext)

    class ClockedScheduler(scheduler.VLLMScheduler):
        pass

    ClockedScheduler.now_s = staticmethod(now_s)
    return ClockedScheduler
