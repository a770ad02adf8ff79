"""Emulated workers: ``fairbench emulate`` processes with the Python interpreter of fairbench."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fairbench.config.backend import COMMAND
from fairbench.config.parse_flags import weight_flags
from fairbench.errors import RunFailed, UsageError
from fairbench.files.formats import toml_value
from fairbench.hardware.catalogue import load_profile
from fairbench.hardware.engine_params import EngineParams, mem_fraction
from fairbench.schedulers.params import make_params
from fairbench_load.backends import base
from fairbench_load.driver.target import DriverTarget
from fairbench_load.kinds import Emulator, check_given
from fairbench_load.launchers import Wanted
from fairbench_load.processes.process import ReplicaPlace
from fairbench_load.processes.servers import Recipe, Server
from fairbench_load.server_facts import get_json


class EmulatorBackend(base.WorkerBackend[Emulator]):
    """The backend of emulators, which read the output length of each answer from a header."""

    def wanted(self, options: base.LiveOptions) -> Wanted:
        check_given(self.config.server_args)
        if (router := self.config.router_command) is not None:
            check_given(router, COMMAND)
            if shutil.which(router[0]) is None:
                raise UsageError(
                    f"router_command: there is no program {router[0]} on this machine; install "
                    "the program, or give its path"
                )
        return Wanted(self.spec.dp)

    def recipe(self, number: int, place: ReplicaPlace) -> Recipe:
        return Recipe(
            f"worker-{number}",
            partial(self._command, number, place),
            ports=3,
            health="/health_generate",
            environment=place.environment,
            place=place,
        )

    def _command(self, index: int, place: ReplicaPlace, ports: Sequence[int]) -> list[str]:
        spec = self.spec
        http, kv_events, kv_replay = map(str, ports)
        arguments = [place.python, "-m", "fairbench", "emulate", "--host", place.listen]
        arguments += ["--port", http, "--kv-events-port", kv_events, "--kv-replay-port", kv_replay]
        arguments += ["--gpu", spec.gpu, "--model", spec.model, "--local", spec.local]
        arguments += ["--time-scale", str(self.config.time_scale)]
        if self.config.router_command is not None:
            arguments += ["--number", str(index)]
        for key, value in base.worker_settings(spec).items():
            arguments += ["--set", f"{key}={toml_value(value)}"]
        arguments += weight_flags(base.sent_weights(spec))
        return [*arguments, *self.config.server_args]

    def served(self, info: Mapping[str, Any]) -> base.Served:
        params = make_params("engine", EngineParams, self.spec.settings)
        fraction = mem_fraction(params, load_profile(self.spec.gpu))
        router = self.config.router_command
        behind = f", behind {Path(router[0]).name}" if router else ""
        return base.Served(
            self.config.kind,
            name=f"{self.config.kind} {info.get('version', '?')}, {self.spec.model}{behind}",
            emulated=True,
            unbounded="the router is another project's" if behind else "",
            pool_tokens=info.get("max_total_num_tokens"),
            mem_fraction_static=None if params.max_total_tokens else fraction,
            chunked_prefill_size=info.get("chunked_prefill_size"),
            timing_profile=info.get("timing_profile"),
            timing_grade=info.get("timing_grade"),
        )

    def remarks(self, workers: Sequence[Server]) -> dict[str, str]:
        if self.config.router_command is None:
            return {}
        seen: set[str] = set()
        for worker in workers:
            with suppress(RunFailed):
                seen.update(get_json(f"{worker.url}/server_info")["fairbench"]["clients"])
        if seen <= {plan.client for plan in self.spec.client_plans()}:
            return {}
        return {
            "router": "the router forwards neither fairbench's headers nor x-request-id, so the "
            "workers did not know the clients and the true lengths of all answers"
        }

    def target(self, url: str, options: base.LiveOptions) -> DriverTarget:
        return DriverTarget(
            url,
            api=self.config.api,
            model=self.spec.model,
            lengths="header",
            max_concurrency=self.config.max_concurrency,
            time_scale=self.config.time_scale,
            foreign_router=self.config.router_command is not None,
        )
