"""Emulated workers: ``fairbench emulate`` processes of this very Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.config.backend import Emulator
from fairbench.config.secret_args import check_given
from fairbench.config.toml import toml_value
from fairbench.config.weights import weight_flags
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_limits import mem_fraction
from fairbench.hardware.engine_params import EngineParams
from fairbench.live.backends.base import LiveBackend, LiveOptions, Served, worker_settings
from fairbench.live.driver.target import Target
from fairbench.live.processes.addresses import LOOPBACK
from fairbench.live.processes.start import Recipe
from fairbench.schedulers.params import make_params


class EmulatorBackend(LiveBackend[Emulator]):
    """The emulator, which takes an answer's true length from a header of ours."""

    def recipes(self, options: LiveOptions) -> list[Recipe]:
        check_given(self.config.server_args)
        return [
            Recipe(f"worker-{index}", self._command, ports=3, health="/health_generate")
            for index in range(self.spec.dp)
        ]

    def _command(self, ports: Sequence[int]) -> list[str]:
        spec = self.spec
        http, kv_events, kv_replay = map(str, ports)
        arguments = [sys.executable, "-m", "fairbench", "emulate", "--host", LOOPBACK]
        arguments += ["--port", http, "--kv-events-port", kv_events, "--kv-replay-port", kv_replay]
        arguments += ["--gpu", spec.gpu, "--model", spec.model, "--local", spec.local]
        arguments += ["--time-scale", str(self.config.time_scale)]
        for key, value in worker_settings(spec).items():
            arguments += ["--set", f"{key}={toml_value(value)}"]
        arguments += weight_flags(spec.weights)
        return [*arguments, *self.config.server_args]

    def served(self, info: Mapping[str, Any]) -> Served:
        params = make_params("engine", EngineParams, self.spec.settings)
        fraction = mem_fraction(params, load_profile(self.spec.gpu))
        return Served(
            self.config.kind,
            name=f"{self.config.kind} {info.get('version', '?')}, {self.spec.model}",
            emulated=True,
            pool_tokens=info.get("max_total_num_tokens"),
            mem_fraction_static=None if params.max_total_tokens else fraction,
            chunked_prefill_size=info.get("chunked_prefill_size"),
            timing_profile=info.get("timing_profile"),
            timing_grade=info.get("timing_grade"),
        )

    def target(self, url: str, options: LiveOptions) -> Target:
        return Target(
            url,
            api=self.config.api,
            model=self.spec.model,
            lengths="header",
            max_concurrency=self.config.max_concurrency,
            time_scale=self.config.time_scale,
        )


BACKEND = EmulatorBackend
