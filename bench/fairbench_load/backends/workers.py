"""Selection of a backend, checks before a live run, and the workers of one or more runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairbench import doors
from fairbench.config import ExperimentSpec
from fairbench.config.serving import check_run_options
from fairbench.errors import RunFailed
from fairbench.execute.live_runs import LivePoint
from fairbench_load.backends.base import LiveBackend, LiveOptions
from fairbench_load.driver.target import check_headers
from fairbench_load.kinds import LoadedBackend
from fairbench_load.launchers import LocalLauncher
from fairbench_load.processes.addresses import LOOPBACK, WorkerAddress
from fairbench_load.processes.environment import require_live_extra
from fairbench_load.processes.servers import OnReady, Server, start_all, stop_all, supervised
from fairbench_load.server_facts import answers


def live_backend(spec: ExperimentSpec) -> LiveBackend[Any]:
    """Return the backend of an experiment that runs on servers."""
    assert isinstance(spec.backend, LoadedBackend), "the load driver cannot use another backend"
    what = f"backend {spec.backend.kind}"
    backend: type[LiveBackend[Any]] = doors.loaded(spec.backend.backend, what)
    return backend(spec, spec.backend)


def same_workers(one: ExperimentSpec, other: ExperimentSpec) -> bool:
    """Return whether two experiments can use the same servers; simulations use no servers."""
    if one.backend is None or other.backend is None:
        return False
    return live_backend(one).needs() == live_backend(other).needs()


def check_live(spec: ExperimentSpec, options: LiveOptions) -> None:
    """Raise UsageError if the run is impossible on this machine, before any server starts."""
    check_run_options(
        spec,
        headers=bool(options.headers),
        server_python=bool(options.server_python),
        launcher=not isinstance(options.launcher, LocalLauncher),
        driver_launcher=options.driver_launcher is not None,
        drivers=options.drivers,
    )
    if spec.backend is None:
        return
    require_live_extra()
    check_headers(options.headers)
    wanted = live_backend(spec).wanted(options)
    if wanted.replicas:
        options.launcher.check(wanted)


# SGLang refuses to empty its cache while requests run, so fairbench waits up to 60 s.
FLUSH_TIMEOUT_S = 60.0
RETRY_S = 0.2


class Workers:
    """Running workers, ready for requests, with the experiment's local scheduler.

    Consecutive runs that differ only in the router or the load can use the same workers. Between
    two runs, ``flush_cache`` must be called.
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
        """The machine of each worker, or () if all workers are on this machine."""
        hosts = tuple(server.recipe.place.host for server in self.servers)
        return () if set(hosts) <= {LOOPBACK} else hosts

    @property
    def is_whole(self) -> bool:
        """Whether all workers have run without a restart since they became ready."""
        return not any(server.deaths or server.has_ended for server in self.servers)

    def can_serve(self, spec: ExperimentSpec) -> bool:
        """Return whether an experiment can use the workers with their present settings."""
        return same_workers(spec, self._spec)

    def server_info(self) -> dict[str, Any]:
        """Return the first worker's answer to ``/server_info``.

        Raises RunFailed if the worker does not answer.
        """
        return live_backend(self._spec).info(self.servers[0].url)

    def flush_cache(self) -> None:
        """Empty each worker's prefix cache, and reset its local scheduler.

        Raises RunFailed if a worker does not empty its cache within ``FLUSH_TIMEOUT_S`` seconds.
        """
        page = live_backend(self._spec).flush_page
        for server in self.servers:
            deadline = time.monotonic() + FLUSH_TIMEOUT_S
            while not answers(server.url + page, method="POST"):
                server.check_running()
                if time.monotonic() > deadline:
                    raise server.failed(f"did not flush its cache within {FLUSH_TIMEOUT_S:g} s")
                time.sleep(RETRY_S)


def by_workers(points: Sequence[LivePoint]) -> list[list[LivePoint]]:
    """Group runs on real servers so that the runs of a group can share workers."""
    groups: list[list[LivePoint]] = []
    for point in points:
        group = next((one for one in groups if same_workers(one[0].spec, point.spec)), None)
        if group is not None:
            group.append(point)
        else:
            groups.append([point])
    return groups


@contextmanager
def running_workers(
    spec: ExperimentSpec,
    log_dir: Path,
    options: LiveOptions,
    *,
    on_ready: OnReady = lambda progress: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Workers]:
    """Start and verify the experiment's workers, and end them after the ``with`` block.

    A worker that ends within the ``with`` block is restarted. Raises UsageError if no machine can
    hold the workers, and RunFailed if a worker does not start or does not run the experiment's
    scheduler. Raises KeyboardInterrupt if ``interrupted`` returns true.
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
                try:
                    backend.verify(server.url)
                except RunFailed as error:
                    raise server.failed(f"lacks the requested scheduling: {error}") from None
            with supervised(servers):
                yield Workers(spec, servers)
        finally:
            stop_all(servers)
