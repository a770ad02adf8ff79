"""The configuration of fairbench's plugin in the engine's Python.

``packages.provide`` must be called before this module is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import VARIABLE
from fairbench_load.plugin_config import PluginConfig


@dataclass(frozen=True)
class InsideConfig(PluginConfig):
    """The plugin's configuration, with the scheduler's class as ``MODULE:CLASS`` in ``path``.

    ``path`` is needed because fairbench may not be installed in the engine's Python environment.
    """

    path: str = ""

    def _build(self) -> LocalScheduler:
        if not self.path:
            return super()._build()
        module, _, name = self.path.partition(":")
        kind = getattr(import_module(module), name)
        scheduler: LocalScheduler = kind(make_params(self.local, kind.Params, self.params))
        return scheduler


def config_of(told: Mapping[str, Any]) -> InsideConfig:
    """Build the configuration from the simulator's message, which ``plugin_of`` creates."""
    os.environ[VARIABLE] = os.pathsep.join(told["files"])
    names = "local", "params", "weights", "eviction", "path"
    return InsideConfig(clients=tuple(told["clients"]), **{name: told[name] for name in names})
