"""The start of a vLLM server: the configuration is checked before a model is loaded.

vLLM calls ``register``, an entry point of the group ``vllm.general_plugins``, in each of its
processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fairbench.errors import FairbenchError, UsageError
from fairbench_engines.ranks import open_folder
from fairbench_engines.vllm.eviction import check_targets
from fairbench_engines.vllm.release import check_config, check_version
from fairbench_load.plugin_config import LOCAL, Classes, PluginConfig, config_from, plugin_config


def register() -> None:
    """If FAIRBENCH_LOCAL is set, check each vLLM configuration that this process creates."""
    if not os.environ.get(LOCAL):
        return
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    # vLLM loads the plugin twice in a process, but ``checked`` must be installed only once.
    if original.__module__ == __name__:
        return

    def checked(arguments: Any, *args: Any, **named: Any) -> Any:
        made = original(arguments, *args, **named)
        if made.scheduler_config.scheduler_cls is not None:
            with one_line():
                plugin_of(made)
                if made.parallel_config.data_parallel_size > 1:
                    open_folder()
            if is_pooling(made):
                sys.stderr.write(
                    "fairbench: --runner pooling: requests are served in order of arrival, because "
                    "vLLM's scheduler does not know the client of an embedding request\n"
                )
        return made

    EngineArgs.create_engine_config = checked


def is_pooling(vllm_config: Any) -> bool:
    """Return whether the server computes embeddings, classes or scores instead of tokens."""
    return bool(vllm_config.model_config.runner_type == "pooling")


def plugin_of(vllm_config: Any) -> PluginConfig:
    """Return the plugin's configuration for this server, including classes of priority.

    Raises UsageError if the scheduler cannot run in the server.
    """
    if not os.environ.get(LOCAL):
        raise UsageError(f"{LOCAL} is not set: set the variable to the scheduler of this server")
    check_version()
    config = config_from(os.environ)
    check_config(vllm_config, config)
    if config.eviction is not None:
        check_targets()
    if is_pooling(vllm_config):
        return plugin_config("fcfs", {})
    if vllm_config.scheduler_config.policy == "priority":
        return replace(config, classes=Classes.LOWEST_FIRST)
    return config


@contextmanager
def one_line() -> Iterator[None]:
    """Turn an error of fairbench in the ``with`` block into a line of text and exit code 2."""
    try:
        yield
    except FairbenchError as error:
        sys.stderr.write(f"fairbench: {error}\n")
        raise SystemExit(2) from None
