"""The plugin's configuration as environment variables: they reach every process of SGLang."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.errors import UsageError
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.params import as_settings, make_params
from fairbench.schedulers.registry import build_local, local_class

LOCAL = "FAIRBENCH_LOCAL"
SETTINGS = "FAIRBENCH_SETTINGS"


@dataclass(frozen=True)
class PluginConfig:
    """A local scheduler and all its parameters, defaults included, as ``NAME.PARAM``."""

    local: str
    params: Mapping[str, Any]

    def build(self) -> LocalScheduler:
        """A fresh scheduler."""
        return build_local(self.local, self.params)


def plugin_config(local: str, settings: Mapping[str, Any]) -> PluginConfig:
    """The configuration of one scheduler, out of the settings of a whole run.

    Raises UsageError for an unknown scheduler, an unknown parameter or a value not allowed.
    """
    params: Any = make_params(local, local_class(local).Params, settings)
    return PluginConfig(local, as_settings(local, params))


def plugin_environment(local: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The environment that has a SGLang server schedule with ``local``. Errors as plugin_config."""
    config = plugin_config(local, settings)
    return {LOCAL: local, SETTINGS: json.dumps(config.params)}


def config_from(environment: Mapping[str, str]) -> PluginConfig:
    """The inverse of ``plugin_environment``. Raises UsageError, naming the variable."""
    local = environment[LOCAL]
    text = environment.get(SETTINGS) or "{}"
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{SETTINGS} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UsageError(f'{SETTINGS} is {text}: it has to be like {{"{local}.PARAM": VALUE}}')
    for name in settings:
        if not name.startswith(f"{local}."):
            raise UsageError(f"{SETTINGS}: {name!r} is not of {local}, which {LOCAL} names")
    return plugin_config(local, settings)
