"""SGLang servers, scheduled by fairbench's plugin inside them or by their own policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairbench.config.backend import SGLang
from fairbench.config.server_args import check_given
from fairbench.errors import RunFailed
from fairbench.hardware.engine_params import EngineParams
from fairbench.live.backends.base import LiveOptions, Served
from fairbench.live.backends.real_servers import RealServerBackend
from fairbench.live.launchers.base import Wanted
from fairbench.live.plugin_config import fetch_report
from fairbench.live.processes.http import get_json
from fairbench.live.processes.process import Place
from fairbench.live.processes.server_python import ServerPython
from fairbench.live.processes.servers import Recipe
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION
from fairbench.schedulers.params import make_params

PYTHON = "FAIRBENCH_SGLANG_PYTHON"
# SGLang loads our plugin.
SERVER_PYTHON = ServerPython(
    ("sglang", "fairbench"),
    "sglang==0.5.23",
    PYTHON,
    plugin="sglang",
)
# Options with the same name on SGLang's command line.
ENGINE_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("chunked_prefill_size", "max_prefill_tokens", "max_running_requests"),
        *("schedule_conservativeness", "mem_fraction_static", "max_total_tokens"),
    )
}


class SGLangBackend(RealServerBackend[SGLang]):
    """SGLang servers that receive the exact length of each answer."""

    def wanted(self, options: LiveOptions) -> Wanted:
        check_given(self.config.server_args)
        on_cpu = _device(self.config.server_args) == "cpu"
        evicts = self.spec.eviction not in (None, DEFAULT_EVICTION)
        python = replace(SERVER_PYTHON, check="check_evicting") if evicts else SERVER_PYTHON
        return self._wanted(python, options, on_cpu=on_cpu)

    def recipe(self, number: int, place: Place) -> Recipe:
        return Recipe(
            name=f"worker-{number}",
            command=lambda ports: [place.python, *self._arguments(place, ports)],
            ports=3,
            health="/health_generate",
            environment={**self._plugin(), **place.environment},
            place=place,
        )

    def verify(self, url: str) -> None:
        policy = self.config.schedule_policy
        if policy is None:
            super().verify(url)
            return
        for report in fetch_report(url):
            raise RunFailed(
                f"the server runs fairbench's scheduler {report.local} instead of "
                f"SGLang's own {policy}"
            )
        found = get_json(f"{url}/server_info").get("schedule_policy")
        if found != policy:
            raise RunFailed(f"the server runs SGLang's own policy {found} instead of {policy}")

    def served(self, info: Mapping[str, Any]) -> Served:
        params = make_params("engine", EngineParams, self.spec.settings)
        return Served(
            self.config.kind,
            name=self._name(info),
            pool_tokens=info.get("max_total_num_tokens"),
            mem_fraction_static=(
                None if params.max_total_tokens else info.get("mem_fraction_static")
            ),
            chunked_prefill_size=info.get("chunked_prefill_size"),
        )

    def _arguments(self, place: Place, ports: Sequence[int]) -> list[str]:
        config = self.config
        http, kv_events, kv_replay = ports
        kv_config = {
            "publisher": "zmq",
            "endpoint": f"tcp://{place.listen}:{kv_events}",
            "replay_endpoint": f"tcp://{place.listen}:{kv_replay}",
            "bind": True,
        }
        arguments = ["-m", "sglang.launch_server", "--model-path", self.spec.model]
        arguments += ["--host", place.listen, "--port", str(http), "--tp-size", str(config.tp)]
        arguments += ["--enable-metrics", "--enable-cache-report"]
        arguments += ["--kv-events-config", json.dumps(kv_config)]
        if config.load_format is not None:
            arguments += ["--load-format", config.load_format]
        if config.schedule_policy is not None:
            arguments += ["--schedule-policy", config.schedule_policy]
        return [*arguments, *self._engine_flags(ENGINE_FLAGS), *config.server_args]


def _device(server_args: Sequence[str]) -> str | None:
    words = [word for arg in server_args for word in arg.split("=", 1)]
    return words[words.index("--device") + 1] if "--device" in words[:-1] else None


BACKEND = SGLangBackend
