"""The backend of SGLang servers, with fairbench's plugin or SGLang's own policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairbench.errors import RunFailed
from fairbench.hardware.engine_params import EngineParams
from fairbench.schedulers.eviction.registry import DEFAULT_EVICTION
from fairbench.schedulers.params import make_params
from fairbench_load.backends.base import LiveOptions, RealServerBackend, Served
from fairbench_load.kinds import SGLang, check_given
from fairbench_load.launchers import Wanted
from fairbench_load.processes.environment import ServerPython
from fairbench_load.processes.process import ReplicaPlace
from fairbench_load.processes.servers import Recipe
from fairbench_load.server_facts import fetch_report, get_json

PYTHON = "FAIRBENCH_SGLANG_PYTHON"
# SGLang itself loads fairbench's plugin if fairbench is installed in the server's Python.
SERVER_PYTHON = ServerPython(("sglang", "fairbench"), "sglang==0.5.23", PYTHON, plugin="sglang")
ENGINE_FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("chunked_prefill_size", "max_prefill_tokens", "max_running_requests"),
        *("schedule_conservativeness", "mem_fraction_static", "max_total_tokens"),
    )
}


class SGLangBackend(RealServerBackend[SGLang]):
    """A backend of SGLang servers; each request sets the exact number of output tokens."""

    def wanted(self, options: LiveOptions) -> Wanted:
        check_given(self.config.server_args)
        words = [word for arg in self.config.server_args for word in arg.split("=", 1)]
        on_cpu = "--device" in words[:-1] and words[words.index("--device") + 1] == "cpu"
        evicts = self.spec.eviction not in (None, DEFAULT_EVICTION)
        python = replace(SERVER_PYTHON, check="check_evicting") if evicts else SERVER_PYTHON
        return self._wanted(python, options, on_cpu=on_cpu)

    def _stock(self, python: ServerPython, policy: str) -> ServerPython:
        return replace(python, check=f"check_policy {policy}")

    def recipe(self, number: int, place: ReplicaPlace) -> Recipe:
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
            raise RunFailed(
                f"the server runs SGLang's own policy {found} instead of {policy}; start the "
                f"server with --schedule-policy {policy}"
            )

    def served(self, info: Mapping[str, Any]) -> Served:
        params = make_params("engine", EngineParams, self.spec.settings)
        off = info.get("disable_overlap_schedule")
        return Served(
            self.config.kind,
            name=self._name(info),
            pool_tokens=info.get("max_total_num_tokens"),
            mem_fraction_static=(
                None if params.max_total_tokens else info.get("mem_fraction_static")
            ),
            chunked_prefill_size=info.get("chunked_prefill_size"),
            async_scheduling=None if off is None else not off,
        )

    def _arguments(self, place: ReplicaPlace, ports: Sequence[int]) -> list[str]:
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
