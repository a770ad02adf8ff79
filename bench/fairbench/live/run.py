"""One experiment on real servers: workers, router and driver; tables and summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.backend import AS_SERVED, Emulator, Endpoint
from fairbench.live.driver.drive import DriveProgress, drive
from fairbench.live.driver.target import Target
from fairbench.live.options import LiveOptions
from fairbench.live.outcome import outcome, served_by, write_served
from fairbench.live.run_folder import run_folder
from fairbench.live.servers.cluster import Cluster, running_cluster
from fairbench.live.servers.router import running_router
from fairbench.live.servers.start import Server
from fairbench.live.servers.vocabulary import vocabulary
from fairbench.live.summary import Served
from fairbench.results.run_result import RunResult


@dataclass(frozen=True, slots=True)
class ServersProgress:
    """How many servers are ready."""

    ready: int
    total: int


OnProgress = Callable[[ServersProgress | DriveProgress], None]


def run_live(
    spec: ExperimentSpec,
    directory: Path,
    options: LiveOptions,
    *,
    cluster: Cluster | None = None,
    on_progress: OnProgress = lambda progress: None,
    interrupted: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Run an experiment on its backend; what finishes is in ``directory`` at once.

    A ``cluster`` that ``serves`` the spec is used, its caches emptied first, and left running;
    without one, workers are started and ended. Once ``interrupted`` the run ends as it stands.
    Raises RunFailed if servers fail to start, KeyboardInterrupt if interrupted before they have.
    """
    with run_folder(directory) as folder:
        with _serving(spec, folder, options, cluster, on_progress, interrupted) as serving:
            write_served(folder, serving.served)
            driven = asyncio.run(
                drive(
                    spec,
                    serving.target,
                    folder,
                    vocab=vocabulary(spec.model),
                    on_progress=on_progress,
                    interrupted=lambda: interrupted() or bool(serving.broken()),
                )
            )
            ended, broken = serving.ended(), serving.broken()
        return outcome(spec, folder, driven, serving.served, ended=ended, broken=broken)


def own_cluster(
    spec: ExperimentSpec,
    folder: Path,
    options: LiveOptions,
    on_progress: OnProgress,
    interrupted: Callable[[], bool],
) -> AbstractContextManager[Cluster]:
    """The spec's workers, with their logs in ``folder``. Errors as those of running_cluster."""
    return running_cluster(
        spec,
        folder,
        server_python=options.server_python,
        timeout_s=options.ready_timeout_s,
        on_ready=lambda ready, total: on_progress(ServersProgress(ready, total)),
        interrupted=interrupted,
    )


@dataclass(frozen=True, slots=True)
class _Serving:
    """What is ready to be driven: where, what it is, and the processes behind it that are ours."""

    target: Target
    served: Served
    workers: Sequence[Server] = ()
    router: Server | None = None

    def ended(self) -> list[str]:
        """The workers that run no more, by name."""
        return [worker.recipe.name for worker in self.workers if worker.has_ended]

    def broken(self) -> str:
        """Why nothing can be served any more, "" if something can."""
        if self.router is not None and self.router.has_ended:
            return "the router ended during the run"
        if self.workers and len(self.ended()) == len(self.workers):
            return "every worker ended during the run"
        return ""


@contextmanager
def _serving(
    spec: ExperimentSpec,
    folder: Path,
    options: LiveOptions,
    cluster: Cluster | None,
    on_progress: OnProgress,
    interrupted: Callable[[], bool],
) -> Iterator[_Serving]:
    """The backend, ready; what was started for it ends with the block."""
    if isinstance(spec.backend, Endpoint):
        yield _Serving(_endpoint(spec, spec.backend, options), served_by(spec, {}))
        return
    with ExitStack() as stack:
        if cluster is None:
            cluster = stack.enter_context(
                own_cluster(spec, folder, options, on_progress, interrupted)
            )
        else:
            assert cluster.serves(spec), "other workers than the spec asks for"
            cluster.flush_cache()
        router = stack.enter_context(
            running_router(
                spec,
                cluster.addresses,
                folder,
                timeout_s=options.ready_timeout_s,
                interrupted=interrupted,
            )
        )
        served = served_by(spec, cluster.server_info())
        yield _Serving(_routed(spec, router.url), served, cluster.servers, router)


def _endpoint(spec: ExperimentSpec, backend: Endpoint, options: LiveOptions) -> Target:
    return Target(
        backend.base_url,
        api=backend.api,
        model=None if spec.model == AS_SERVED else spec.model,
        headers=options.headers,
        lengths=backend.output_lengths,
        max_concurrency=backend.max_concurrency,
    )


def _routed(spec: ExperimentSpec, url: str) -> Target:
    backend = spec.backend
    assert backend is not None
    assert not isinstance(backend, Endpoint)
    emulated = isinstance(backend, Emulator)
    return Target(
        url,
        api=backend.api,
        model=spec.model,
        lengths="header" if emulated else "exact",
        max_concurrency=backend.max_concurrency,
        time_scale=backend.time_scale if isinstance(backend, Emulator) else 1.0,
    )
