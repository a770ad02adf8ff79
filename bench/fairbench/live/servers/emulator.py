"""How to start emulated workers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fairbench.config import ExperimentSpec
from fairbench.config.backend import Emulator
from fairbench.config.toml import toml_value
from fairbench.live.servers.ports import LOOPBACK
from fairbench.live.servers.start import Recipe


def emulator_recipes(spec: ExperimentSpec, backend: Emulator) -> list[Recipe]:
    """One recipe for each of the spec's workers."""

    def command(ports: Sequence[int]) -> list[str]:
        http, kv_events, kv_replay = map(str, ports)
        arguments = [sys.executable, "-m", "fairbench", "emulate", "--host", LOOPBACK]
        arguments += ["--port", http, "--kv-events-port", kv_events, "--kv-replay-port", kv_replay]
        arguments += ["--gpu", spec.gpu, "--model", spec.model, "--local", spec.local]
        arguments += ["--time-scale", str(backend.time_scale)]
        for key, value in spec.settings.items():
            if key.startswith(("engine.", f"{spec.local}.")):
                arguments += ["--set", f"{key}={toml_value(value)}"]
        return [*arguments, *backend.server_args]

    return [
        Recipe(f"worker-{index}", command, ports=3, health="/health_generate")
        for index in range(spec.dp)
    ]
