"""The common parts of the SGLang and vLLM backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fairbench.config.backend import RealServers
from fairbench.errors import UsageError
from fairbench.live.backends.base import LiveOptions, WorkerBackend, sent_evicting, sent_settings
from fairbench.live.driver.target import Target
from fairbench.live.launchers.base import LocalLauncher, Wanted
from fairbench.live.plugins.config import LOCAL, plugin_environment
from fairbench.live.plugins.releases import untested_environment
from fairbench.live.pool import too_small
from fairbench.live.processes.server_python import ServerPython
from fairbench.live.sent_names import sent_weights

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
        """Return the environment variables that configure the plugin."""
        if self.config.schedule_policy is not None:
            return {LOCAL: ""}  # whatever this process was told itself
        spec = self.spec
        told = plugin_environment(
            spec.local, sent_settings(spec), sent_weights(spec), sent_evicting(spec)
        )
        return told | untested_environment()

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
            python = replace(python, release="")  # no plugin has to fit
        return Wanted(
            self.spec.dp,
            python,
            options.server_python,
            gpus=0 if on_cpu else config.tp,
            share_gpus=config.share_gpus,
        )
