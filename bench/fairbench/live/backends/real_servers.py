"""The common parts of the SGLang and vLLM backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fairbench.config.backend import RealServers
from fairbench.errors import UsageError
from fairbench.hardware.engine_params import EngineParams
from fairbench.live.backends.base import LiveOptions, WorkerBackend, too_small
from fairbench.live.driver.target import Target
from fairbench.live.launchers.base import LocalLauncher, Wanted
from fairbench.live.plugin_config import LOCAL
from fairbench.live.plugin_releases import untested_environment
from fairbench.live.processes.server_python import ServerPython
from fairbench.schedulers.params import own_settings

POOL = "engine.max_total_tokens"

R = TypeVar("R", bound=RealServers)


class RealServerBackend(WorkerBackend[R]):
    """An engine on GPUs or a CPU, with fairbench's plugin inside it or with its own policy."""

    def target(self, url: str, options: LiveOptions) -> Target:
        return Target(
            url,
            api=self.config.api,
            model=self.spec.model,
            max_concurrency=self.config.max_concurrency,
        )

    def _name(self, info: Mapping[str, Any]) -> str:
        """Return the name for tables: release, the server's own policy if any, and model."""
        config = self.config
        own = f" with its own {config.schedule_policy}" if config.schedule_policy else ""
        return f"{config.kind} {info.get('version', '?')}{own}, {self.spec.model}"

    def _plugin(self) -> dict[str, str]:
        if self.config.schedule_policy is not None:
            return {LOCAL: ""}  # set here even if this process has another value
        return self.plugin.environment() | untested_environment()

    def _engine_flags(self, flags: Mapping[str, str]) -> list[str]:
        """Return the server's flags, by setting, for settings that differ from the defaults."""
        engine, default = own_settings("engine", self.spec.settings), EngineParams()
        return [
            text
            for name, flag in flags.items()
            if (value := engine.get(name)) not in (None, getattr(default, name))
            for text in (flag, str(value))
        ]

    def _wanted(self, python: ServerPython, options: LiveOptions, *, on_cpu: bool) -> Wanted:
        config, model = self.config, self.spec.model
        here = isinstance(options.launcher, LocalLauncher)
        if here and model.startswith(("/", ".")) and not Path(model).exists():
            raise UsageError(
                f"model = {model!r}: there is no such folder; give an existing folder, or a "
                "name on the Hugging Face hub"
            )
        given = self.spec.settings.get(POOL)
        if given and (reason := too_small(self.spec, given)):
            raise UsageError(f"{POOL} = {given}: {reason}")
        if config.schedule_policy is not None:
            python = replace(python, plugin="")  # no plugin is installed
        return Wanted(
            self.spec.dp,
            python,
            options.server_python,
            gpus=0 if on_cpu else config.tp,
            share_gpus=config.share_gpus,
        )
