"""How to start SGLang servers that schedule with one of our local schedulers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.backend import SGLang
from fairbench.errors import UsageError
from fairbench.hardware.engine_params import EngineParams
from fairbench.live.plugins.sglang.config import LOCAL, plugin_environment
from fairbench.live.servers.gpus import VISIBLE, assign, visible_gpus
from fairbench.live.servers.ports import LOOPBACK
from fairbench.live.servers.start import Recipe
from fairbench.schedulers.params import own_settings

PYTHON = "FAIRBENCH_SGLANG_PYTHON"
MISSING = """
from importlib.util import find_spec
print(*[name for name in ("sglang", "fairbench") if not find_spec(name)])
"""
# What SGLang calls by the same name on its command line.
ENGINE_FLAGS = (
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "schedule_conservativeness",
    "mem_fraction_static",
    "max_total_tokens",
)


def sglang_python(chosen: str | None) -> str:
    """The Python that has SGLang: as chosen, or ``FAIRBENCH_SGLANG_PYTHON``, or this one.

    Raises UsageError unless it has both SGLang and fairbench, whose plugin SGLang loads.
    """
    python = chosen or os.environ.get(PYTHON) or sys.executable
    try:
        found = subprocess.run([python, "-c", MISSING], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        raise UsageError(f"server_python {python}: cannot be run") from None
    if missing := found.stdout.split():
        raise UsageError(
            f"server_python {python}: has no {' and no '.join(missing)}; install sglang==0.5.23 "
            f"and fairbench-llm in one environment and name its Python (--server-python, {PYTHON})"
        )
    return python


def sglang_recipes(spec: ExperimentSpec, backend: SGLang, python: str) -> list[Recipe]:
    """One recipe for each of the spec's servers. Raises UsageError if there are too few GPUs."""
    plugin = _plugin(spec, backend)
    return [
        Recipe(
            name=f"worker-{index}",
            command=lambda ports: [python, *_arguments(spec, backend, ports)],
            ports=3,
            health="/health_generate",
            environment=plugin | gpus,
        )
        for index, gpus in enumerate(_gpus(spec, backend))
    ]


def _plugin(spec: ExperimentSpec, backend: SGLang) -> dict[str, str]:
    if backend.schedule_policy is not None:
        return {LOCAL: ""}  # whatever this process was told itself
    return plugin_environment(spec.local, spec.settings)


def _gpus(spec: ExperimentSpec, backend: SGLang) -> list[dict[str, str]]:
    if _device(backend.server_args) == "cpu":
        return [{}] * spec.dp
    groups = assign(visible_gpus(), dp=spec.dp, tp=backend.tp, share=backend.share_gpus)
    return [{VISIBLE: group} for group in groups]


def _device(server_args: Sequence[str]) -> str | None:
    words = [word for arg in server_args for word in arg.split("=", 1)]
    return words[words.index("--device") + 1] if "--device" in words[:-1] else None


def _arguments(spec: ExperimentSpec, backend: SGLang, ports: Sequence[int]) -> list[str]:
    http, kv_events, kv_replay = ports
    kv_config = {
        "publisher": "zmq",
        "endpoint": f"tcp://{LOOPBACK}:{kv_events}",
        "replay_endpoint": f"tcp://{LOOPBACK}:{kv_replay}",
        "bind": True,
    }
    arguments = ["-m", "sglang.launch_server", "--model-path", spec.model]
    arguments += ["--host", LOOPBACK, "--port", str(http), "--tp-size", str(backend.tp)]
    arguments += ["--enable-metrics", "--enable-cache-report"]
    arguments += ["--kv-events-config", json.dumps(kv_config)]
    if backend.load_format is not None:
        arguments += ["--load-format", backend.load_format]
    if backend.schedule_policy is not None:
        arguments += ["--schedule-policy", backend.schedule_policy]
    return [*arguments, *_engine_flags(spec.settings), *backend.server_args]


def _engine_flags(settings: Mapping[str, Any]) -> list[str]:
    """The engine settings that are not SGLang's own defaults, as its flags."""
    default = EngineParams()
    engine = own_settings("engine", settings)
    return [
        text
        for name in ENGINE_FLAGS
        if (value := engine.get(name)) not in (None, getattr(default, name))
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
