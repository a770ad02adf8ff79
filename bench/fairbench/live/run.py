"""A live experiment: starts workers, router and driver; returns tables and summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.live.backends.base import LiveOptions, Served, too_small
from fairbench.live.backends.endpoint import told_by
from fairbench.live.backends.registry import live_backend
from fairbench.live.backends.workers import Workers, running_workers
from fairbench.live.driver.drive import DriveProgress, DriveResult, drive
from fairbench.live.driver.target import Target
from fairbench.live.outcome import outcome, write_served
from fairbench.live.processes.addresses import LOOPBACK
from fairbench.live.processes.router import running_router
from fairbench.live.processes.servers import Server, ServersProgress
from fairbench.live.sent_names import objectives, sent_names
from fairbench.metrics.tables import RunResult
from fairbench.results.new_directories import run_folder

OnProgress = Callable[[ServersProgress | DriveProgress], None]


class Driving(Protocol):
    """A function that drives clients like ``live.driver.drive``, but blocks."""

    def __call__(
        self,
        spec: ExperimentSpec,
        target: Target,
        folder: Path,
        *,
        vocab: range,
        on_progress: Callable[[DriveProgress], None],
        interrupted: Callable[[], bool],
    ) -> DriveResult:
        """Drive the clients; at the end the records are in ``folder``."""


def drive_here(*work: Any, **options: Any) -> DriveResult:
    """Drive the clients in this process, by the arguments of ``Driving``."""
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
    """Run an experiment on its backend; finished requests are written to ``directory`` at once.

    ``workers`` that ``serve`` the spec are used after their caches were emptied, and are left
    running; without ``workers``, some are started and ended. ``driving`` sends the load from places
    that reach the router at ``listen``, an address of this machine. Once ``interrupted`` the run
    ends as it stands. Raises RunFailed if servers fail to start, KeyboardInterrupt if interrupted
    before they have started.
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
            ended, broken, remarks = serving.ended(), serving.broken(), serving.remarks()
        return outcome(
            *(spec, folder, driven, serving.served), ended=ended, broken=broken, remarks=remarks
        )


@dataclass(frozen=True, slots=True)
class _Serving:
    """A backend that is ready for load: its target, its description, and its processes."""

    target: Target
    served: Served
    workers: Sequence[Server] = ()
    router: Server | None = None
    remarks: Callable[[], Mapping[str, str]] = dict

    def ended(self) -> list[str]:
        """Return the names of workers that have ended meanwhile, including restarted ones."""
        return [one.named_with_place() for one in self.workers if one.deaths or one.has_ended]

    def broken(self) -> str:
        """Return why no request can be served any more, or "" if some can."""
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
    """Yield the backend once ready; the processes started for it end with the block."""
    backend = live_backend(spec)
    if (url := backend.running_at) is not None:
        served = backend.served(told_by(url, options.headers))
        yield _Serving(backend.target(url, options), served)
        return
    with ExitStack() as stack:
        if workers is None:
            workers = stack.enter_context(
                running_workers(
                    spec, folder, options, on_ready=on_progress, interrupted=interrupted
                )
            )
        else:
            assert workers.serve(spec), "these workers differ from those that the spec asks for"
            workers.flush_cache()
        router = stack.enter_context(
            running_router(
                spec,
                workers.addresses,
                folder,
                timeout_s=options.ready_timeout_s,
                interrupted=interrupted,
                listen=listen,
            )
        )
        served = replace(backend.served(workers.server_info()), hosts=workers.hosts)
        if reason := too_small(spec, served.pool_tokens):
            raise RunFailed(f"the servers started, but {reason}")
        target = backend.target(router.url, options)
        if not target.foreign_router:
            target = replace(target, objectives=objectives(spec), names=sent_names(spec))
        yield _Serving(
            target, served, workers.servers, router, lambda: backend.remarks(workers.servers)
        )
