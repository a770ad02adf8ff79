"""Execution of a run on real servers, from starting workers and router to the result."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fairbench.config import ExperimentSpec
from fairbench.config.parse_flags import weight_flags
from fairbench.errors import RunFailed
from fairbench.execute.tasks import DriveProgress, ServersProgress
from fairbench.files.formats import toml_value
from fairbench.metrics.tables import RunResult
from fairbench.results.new_directories import run_folder
from fairbench.schedulers.gateway.registry import ADMISSION
from fairbench.schedulers.params import as_settings
from fairbench_load.backends.base import (
    LiveOptions,
    Served,
    objective_flags,
    objectives,
    sent_names,
    sent_weights,
    too_small,
)
from fairbench_load.backends.endpoint import told_by
from fairbench_load.backends.workers import Workers, live_backend, running_workers
from fairbench_load.driver.drive import DriveResult, drive
from fairbench_load.driver.target import DriverTarget
from fairbench_load.kinds import PORTS, fill_command
from fairbench_load.processes import servers
from fairbench_load.processes.addresses import LOOPBACK, WorkerAddress
from fairbench_load.processes.process import HERE, LocalPlace
from fairbench_load.server_facts import status_of
from fairbench_load.summary import outcome, write_served

UNLIMITED = 10**9
# Routers report on ``READY_PAGES`` that they are ready; not every router has all of these pages.
READY_PAGES = ("/health", "/v1/models", "/readiness")


def router_recipe(
    spec: ExperimentSpec, workers: Sequence[WorkerAddress], listen: str = LOOPBACK
) -> servers.Recipe:
    """Return the start instructions of the experiment's router, which listens at ``listen``.

    The router is ``fairbench serve`` unless the backend names an external router.
    """
    place = LocalPlace(host=listen, listen=listen)
    theirs = None if spec.backend is None else spec.backend.external_router
    if theirs is not None:
        return external_recipe(theirs, workers, spec.model, place)

    def command(ports: Sequence[int]) -> list[str]:
        arguments = [sys.executable, "-m", "fairbench", "serve", "--router", spec.router]
        arguments += ["--host", listen, "--port", str(ports[0])]
        # The router's queue has no limit, because an experiment may overload the workers. The
        # router ends at once, because no client waits for answers at the end of a run.
        arguments += ["--max-queue", str(UNLIMITED), "--grace", "0", "--no-client-limit"]
        for worker in workers:
            arguments += ["--worker-url", worker.as_option()]
        own = f"{spec.router}."
        settings = {key: value for key, value in spec.settings.items() if key.startswith(own)}
        if (params := spec.admission) is not None:
            # Admission control uses the timing profile of the experiment by default.
            params = replace(params, profile=params.profile or spec.gpu)
            settings |= as_settings(ADMISSION, params)
        for key, value in settings.items():
            arguments += ["--set", f"{key}={toml_value(value)}"]
        return [*arguments, *objective_flags(spec), *weight_flags(sent_weights(spec))]

    return servers.Recipe("router", command, place=place)


def external_recipe(
    words: Sequence[str], workers: Sequence[WorkerAddress], model: str, place: LocalPlace = HERE
) -> servers.Recipe:
    """Return the start instructions of an external router, whose command is ``words``."""
    urls = [worker.url for worker in workers]
    return servers.Recipe(
        "router",
        lambda ports: fill_command(
            words, host=place.listen, ports=ports, workers=urls, model=model
        ),
        ports=PORTS,
        ready=takes_requests,
        place=place,
    )


def takes_requests(url: str) -> bool:
    """Return whether a router accepts requests.

    All ``READY_PAGES`` must answer: at least one with status 2xx, and none with status 5xx. In
    sglang-router, ``/health`` succeeds before there is a worker, but ``/readiness`` does not.
    """
    found = [status_of(url + page, timeout_s=servers.HEALTH_TIMEOUT_S) for page in READY_PAGES]
    answers = [status for status in found if status is not None]
    return len(answers) == len(found) and min(answers) < 300 and max(answers) < 500


OnProgress = Callable[[ServersProgress | DriveProgress], None]


class Driving(Protocol):
    """The interface of functions that send a run's load, such as ``drive``."""

    def __call__(
        self,
        spec: ExperimentSpec,
        target: DriverTarget,
        folder: Path,
        *,
        vocab: range,
        on_progress: Callable[[DriveProgress], None],
        interrupted: Callable[[], bool],
    ) -> DriveResult:
        """Send the load of all clients to the servers, and write records into ``folder``."""


def drive_here(*work: Any, **options: Any) -> DriveResult:
    """Send the load from this process, with the arguments of ``Driving``."""
    return asyncio.run(drive(*work, **options))


def run_live(
    spec: ExperimentSpec,
    directory: Path,
    options: LiveOptions,
    *,
    workers: Workers | None = None,
    on_progress: OnProgress = lambda progress: None,
    interrupted: Callable[[], bool] = lambda: False,
    driving: Driving = drive_here,
    listen: str = LOOPBACK,
) -> RunResult:
    """Run an experiment on its backend.

    Each request is written to ``directory`` as soon as it ends. When ``interrupted`` returns True,
    the run ends, and the records until then are kept.

    If ``workers`` are given, they must fit the experiment (see ``can_serve``). The caches of
    ``workers`` are emptied before the run, and ``workers`` keep running after the run. By default,
    the run starts and ends its own workers. ``driving`` is the function that sends the load.
    Drivers on other machines reach the router at ``listen``, an address of this machine. Raises
    RunFailed if servers fail to start, and KeyboardInterrupt if a signal arrives before the servers
    have started.
    """
    with run_folder(directory) as folder:
        with _serving(spec, folder, options, workers, on_progress, interrupted, listen) as serving:
            write_served(folder, serving.served)
            driven = driving(
                spec,
                serving.target,
                folder,
                vocab=live_backend(spec).vocabulary(),
                on_progress=on_progress,
                interrupted=lambda: interrupted() or bool(serving.broken()),
            )
            ended, broken, remarks = serving.ended_workers(), serving.broken(), serving.remarks()
        return outcome(
            *(spec, folder, driven, serving.served), ended=ended, broken=broken, remarks=remarks
        )


@dataclass(frozen=True, slots=True)
class _Serving:
    """A backend that is ready for requests: the driver's target, a description, and the servers."""

    target: DriverTarget
    served: Served
    workers: Sequence[servers.Server] = ()
    router: servers.Server | None = None
    remarks: Callable[[], Mapping[str, str]] = dict

    def ended_workers(self) -> list[str]:
        """Return the names of all workers that have ended, including restarted workers."""
        return [one.named_with_place() for one in self.workers if one.deaths or one.has_ended]

    def broken(self) -> str:
        """Return why no server can answer more requests, or "" if at least one server can."""
        if self.router is not None and self.router.has_ended:
            return f"the router ended during the run, with {self.router.last_words()}"
        if self.workers and all(worker.has_ended for worker in self.workers):
            return "every worker ended during the run"
        return ""


@contextmanager
def _serving(
    spec: ExperimentSpec,
    folder: Path,
    options: LiveOptions,
    workers: Workers | None,
    on_progress: OnProgress,
    interrupted: Callable[[], bool],
    listen: str,
) -> Iterator[_Serving]:
    """Yield the backend when it is ready; after the ``with`` block, end the started processes."""
    backend = live_backend(spec)
    if (url := backend.running_at) is not None:
        served = backend.served(told_by(url, options.headers))
        yield _Serving(backend.target(url, options), served)
        return
    with ExitStack() as stack:
        if workers is None:
            starting = running_workers(
                spec, folder, options, on_ready=on_progress, interrupted=interrupted
            )
            workers = stack.enter_context(starting)
        else:
            assert workers.can_serve(spec), "the workers have other settings than the spec"
            workers.flush_cache()
        (router,) = servers.start_all(
            [router_recipe(spec, workers.addresses, listen)],
            folder,
            timeout_s=options.ready_timeout_s,
            interrupted=interrupted,
        )
        stack.callback(servers.stop_all, [router])
        served = replace(backend.served(workers.server_info()), hosts=workers.hosts)
        if reason := too_small(spec, served.pool_tokens):
            raise RunFailed(f"the servers started, but {reason}")
        target = backend.target(router.url, options)
        if not target.foreign_router:
            target = replace(target, objectives=objectives(spec), names=sent_names(spec))
        yield _Serving(
            target, served, workers.servers, router, lambda: backend.remarks(workers.servers)
        )
