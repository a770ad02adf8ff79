"""The workers of a run, or of several runs that can share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.live.backends.base import LiveBackend, LiveOptions
from fairbench.live.backends.registry import live_backend, same_workers
from fairbench.live.processes.addresses import LOOPBACK, WorkerAddress
from fairbench.live.processes.http import answers
from fairbench.live.processes.servers import OnReady, Server, start_all, stop_all, supervised

FLUSH_TIMEOUT_S = 60.0  # SGLang refuses while requests are running
RETRY_S = 0.2


class Workers:
    """Servers that are ready, and verified to run the experiment's local scheduler.

    Runs that differ in the router or in what is sent can share them, one run after another, with
    ``flush_cache`` between runs: see ``serve``.
    """

    def __init__(self, spec: ExperimentSpec, servers: Sequence[Server]) -> None:
        self._spec = spec
        self.servers = tuple(servers)

    @property
    def addresses(self) -> list[WorkerAddress]:
        return [
            WorkerAddress(
                server.url,
                kv_events=server.recipe.kv_events.format(host=host, port=server.ports[1]),
                kv_replay=f"tcp://{host}:{server.ports[2]}",
            )
            for server in self.servers
            for host in [server.recipe.place.host]
        ]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machine of each worker; empty if all workers are on this machine."""
        hosts = tuple(server.recipe.place.host for server in self.servers)
        return () if set(hosts) <= {LOOPBACK} else hosts

    @property
    def is_whole(self) -> bool:
        """Return whether every worker has run without interruption since it became ready."""
        return not any(server.deaths or server.has_ended for server in self.servers)

    def serve(self, spec: ExperimentSpec) -> bool:
        """Return whether these workers are the ones that the experiment requires."""
        return same_workers(spec, self._spec)

    def server_info(self) -> dict[str, Any]:
        """Return the first worker's description. Raises RunFailed if it does not answer."""
        return live_backend(self._spec).info(self.servers[0].url)

    def flush_cache(self) -> None:
        """Empty every worker's prefix cache and restart its local scheduler.

        Raises RunFailed if one keeps refusing.
        """
        page = live_backend(self._spec).flush_page
        for server in self.servers:
            deadline = time.monotonic() + FLUSH_TIMEOUT_S
            while not answers(server.url + page, method="POST"):
                server.check()
                if time.monotonic() > deadline:
                    raise server.failed(f"did not flush its cache within {FLUSH_TIMEOUT_S:g} s")
                time.sleep(RETRY_S)


@contextmanager
def running_workers(
    spec: ExperimentSpec,
    log_dir: Path,
    options: LiveOptions,
    *,
    on_ready: OnReady = lambda progress: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Workers]:
    """Start and verify the experiment's workers, which end together with the block.

    A worker that ends earlier is restarted (see ``supervised``). Raises UsageError if
    there is no place for the workers, RunFailed if a worker does not start or runs another
    scheduler, KeyboardInterrupt if ``interrupted`` meanwhile.
    """
    backend = live_backend(spec)
    patience_s = options.ready_timeout_s
    places = options.launcher.places(
        backend.wanted(options), timeout_s=patience_s, interrupted=interrupted
    )
    with places as found:
        recipes = backend.recipes(found)
        servers = start_all(
            recipes, log_dir, timeout_s=patience_s, on_ready=on_ready, interrupted=interrupted
        )
        try:
            for server in servers:
                _verify(server, backend)
            with supervised(servers):
                yield Workers(spec, servers)
        finally:
            stop_all(servers)


def _verify(server: Server, backend: LiveBackend[Any]) -> None:
    try:
        backend.verify(server.url)
    except RunFailed as error:
        raise server.failed(f"does not schedule as asked: {error}") from None
