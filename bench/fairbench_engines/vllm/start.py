"""The start of a vLLM server: its configuration is checked before it loads a model.

``register`` is an entry point of the group ``vllm.general_plugins``, which vLLM calls in each of
its processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairbench.errors import FairbenchError, UsageError
from fairbench.live.plugin_config import LOCAL, PluginConfig, config_from
from fairbench_engines.vllm.eviction import check_targets
from fairbench_engines.vllm.release import check_config, check_version


def register() -> None:
    """Check every configuration that this process makes for a server with FAIRBENCH_LOCAL."""
    if not os.environ.get(LOCAL):
        return
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config

    def checked(arguments: Any, *args: Any, **named: Any) -> Any:
        made = original(arguments, *args, **named)
        if made.scheduler_config.scheduler_cls is not None:
            with one_line():
                plugin_of(made)
        return made

    EngineArgs.create_engine_config = checked


def plugin_of(vllm_config: Any) -> PluginConfig:
    """Return this process's scheduler. Raises UsageError if the server cannot run it."""
    if not os.environ.get(LOCAL):
        raise UsageError(f"{LOCAL} is not set: it must name the scheduler of this server")
    check_version()
    config = config_from(os.environ)
    check_config(vllm_config, config)
    if config.eviction is not None:
        check_targets()
    return config


@contextmanager
def one_line() -> Iterator[None]:
    """End the process with exit code 2 and one line for an error of ours."""
    try:
        yield
    except FairbenchError as error:
        sys.stderr.write(f"fairbench: {error}\n")
        raise SystemExit(2) from None
