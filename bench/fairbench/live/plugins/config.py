"""A plugin's configuration as environment variables: they reach every process of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.params import as_settings, make_params
from fairbench.schedulers.registry import build_local, local_class
from fairbench.schedulers.setup import checked_weights

LOCAL = "FAIRBENCH_LOCAL"
SETTINGS = "FAIRBENCH_SETTINGS"
WEIGHTS = "FAIRBENCH_WEIGHTS"


@dataclass(frozen=True)
class PluginConfig:
    """A local scheduler and all its parameters, defaults included, as ``NAME.PARAM``.

    ``weights`` are what clients are entitled to, 1 where there is none.
    """

    local: str
    params: Mapping[str, Any]
    weights: Mapping[str, float] = field(default_factory=dict)

    def build(self) -> LocalScheduler:
        """A fresh scheduler."""
        return build_local(self.local, self.params)


def plugin_config(
    local: str, settings: Mapping[str, Any], weights: Mapping[str, float] | None = None
) -> PluginConfig:
    """The configuration of one scheduler, out of the settings of a whole run.

    Raises UsageError for an unknown scheduler, an unknown parameter or a value not allowed.
    """
    params: Any = make_params(local, local_class(local).Params, settings)
    return PluginConfig(local, as_settings(local, params), checked_weights(weights or {}))


def plugin_environment(
    local: str, settings: Mapping[str, Any], weights: Mapping[str, float] | None = None
) -> dict[str, str]:
    """The environment that has a server schedule with ``local``. Errors as plugin_config."""
    config = plugin_config(local, settings, weights)
    told = {LOCAL: local, SETTINGS: json.dumps(config.params)}
    # Also where there are none, so that a server does not take over this process's own.
    return told | {WEIGHTS: json.dumps(config.weights)}


def config_from(environment: Mapping[str, str]) -> PluginConfig:
    """The inverse of ``plugin_environment``. Raises UsageError, naming the variable."""
    local = environment[LOCAL]
    settings = _read(environment, SETTINGS, f'{{"{local}.PARAM": VALUE}}')
    for name in settings:
        if not name.startswith(f"{local}."):
            raise UsageError(f"{SETTINGS}: {name!r} is not of {local}, which {LOCAL} names")
    return plugin_config(local, settings, _read(environment, WEIGHTS, '{"CLIENT": WEIGHT}'))


def _read(environment: Mapping[str, str], variable: str, shape: str) -> dict[str, Any]:
    text = environment.get(variable) or "{}"
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{variable} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{variable} is {text}: it has to be like {shape}")
    return found
