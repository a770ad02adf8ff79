"""The workers of a run, or of several runs that can share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.backend import Emulator, SGLang
from fairbench.errors import RunFailed
from fairbench.live.plugins.sglang.report import fetch_report, require_active
from fairbench.live.servers.address import WorkerAddress
from fairbench.live.servers.emulator import emulator_recipes
from fairbench.live.servers.http import answers, get_json
from fairbench.live.servers.ports import LOOPBACK
from fairbench.live.servers.sglang import sglang_python, sglang_recipes
from fairbench.live.servers.start import Recipe, Server, start_all, stop_all

FLUSH_TIMEOUT_S = 60.0  # SGLang refuses while requests are running
RETRY_S = 0.2


class Cluster:
    """Workers that are ready and verified to run the spec's local scheduler.

    Runs that differ in the router or in what is sent can share it, one after another, with
    ``flush_cache`` between them: see ``serves``.
    """

    def __init__(self, spec: ExperimentSpec, servers: Sequence[Server]) -> None:
        self._spec = spec
        self.servers = tuple(servers)

    @property
    def addresses(self) -> list[WorkerAddress]:
        """Where the workers are, in the order of their numbers."""
        return [
            WorkerAddress(
                server.url,
                kv_events=f"tcp://{LOOPBACK}:{server.ports[1]}",
                kv_replay=f"tcp://{LOOPBACK}:{server.ports[2]}",
            )
            for server in self.servers
        ]

    @property
    def is_whole(self) -> bool:
        """Whether every worker still runs."""
        return not any(server.has_ended for server in self.servers)

    def serves(self, spec: ExperimentSpec) -> bool:
        """Whether these very workers are what the spec asks for."""
        return same_workers(spec, self._spec)

    def server_info(self) -> dict[str, Any]:
        """What the first worker says about itself. Raises RunFailed if it does not answer."""
        return get_json(f"{self.servers[0].url}/server_info")

    def flush_cache(self) -> None:
        """Empty every worker's prefix cache, and have its local scheduler begin afresh.

        Raises RunFailed if one goes on refusing.
        """
        for server in self.servers:
            deadline = time.monotonic() + FLUSH_TIMEOUT_S
            while not answers(f"{server.url}/flush_cache", method="POST"):
                server.check()
                if time.monotonic() > deadline:
                    raise server.failed(f"did not flush its cache within {FLUSH_TIMEOUT_S:g} s")
                time.sleep(RETRY_S)


@contextmanager
def running_cluster(
    spec: ExperimentSpec,
    log_dir: Path,
    *,
    server_python: str | None = None,
    timeout_s: float,
    on_ready: Callable[[int, int], None] = lambda ready, total: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Cluster]:
    """The spec's workers, started and verified; they end with the block.

    ``server_python`` is the Python that has SGLang. Raises UsageError if the machine cannot hold
    them, RunFailed if one does not start or runs another scheduler, KeyboardInterrupt if
    ``interrupted`` meanwhile.
    """
    servers = start_all(
        worker_recipes(spec, server_python),
        log_dir,
        timeout_s=timeout_s,
        on_ready=on_ready,
        interrupted=interrupted,
    )
    try:
        for server in servers:
            _verify(server, spec)
        yield Cluster(spec, servers)
    finally:
        stop_all(servers)


def worker_recipes(spec: ExperimentSpec, server_python: str | None = None) -> list[Recipe]:
    """How the spec's workers are started. Raises UsageError if they cannot be on this machine."""
    if isinstance(spec.backend, SGLang):
        return sglang_recipes(spec, spec.backend, sglang_python(server_python))
    assert isinstance(spec.backend, Emulator), "an endpoint or the simulator has no workers"
    return emulator_recipes(spec, spec.backend)


def _verify(server: Server, spec: ExperimentSpec) -> None:
    """Raise RunFailed unless the worker reports the spec's local scheduler and parameters."""
    try:
        if isinstance(spec.backend, SGLang) and spec.backend.schedule_policy is not None:
            _require_stock(server.url, spec.backend.schedule_policy)
        else:
            require_active(fetch_report(server.url), local=spec.local, settings=spec.settings)
    except RunFailed as error:
        raise server.failed(f"does not schedule as asked: {error}") from None


def _require_stock(url: str, policy: str) -> None:
    """Raise RunFailed unless SGLang itself schedules there, by this policy."""
    for report in fetch_report(url):
        raise RunFailed(f"the server runs fairbench's {report.local}, not SGLang's own {policy}")
    found = get_json(f"{url}/server_info").get("schedule_policy")
    if found != policy:
        raise RunFailed(f"the server runs SGLang's own {found}, not {policy}")


def same_workers(one: ExperimentSpec, other: ExperimentSpec) -> bool:
    """Whether runs of both can share their workers. The simulator has none."""
    return one.backend is not None and _needs(one) == _needs(other)


def _needs(spec: ExperimentSpec) -> dict[str, Any]:
    """All of a spec that its workers depend on."""
    return {
        "backend": spec.backend,
        "model": spec.model,
        "gpu": spec.gpu,
        "dp": spec.dp,
        "local": spec.local,
        "settings": {
            key: value
            for key, value in spec.settings.items()
            if key.startswith(("engine.", f"{spec.local}."))
        },
    }
