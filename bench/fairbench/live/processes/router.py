"""The router process, fairbench's or another: how it is started in front of the workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.flags.flag import weight_flags
from fairbench.config.server_args import PORTS, filled
from fairbench.files.toml_text import toml_value
from fairbench.live.processes.addresses import LOOPBACK, WorkerAddress
from fairbench.live.processes.http import status_of
from fairbench.live.processes.process import HERE, LocalPlace
from fairbench.live.processes.servers import HEALTH_TIMEOUT_S, Recipe, Server, start_all, stop_all
from fairbench.live.sent_names import objective_flags, sent_weights
from fairbench.schedulers.gateway.registry import ADMISSION
from fairbench.schedulers.params import as_settings

UNLIMITED = 10**9
READY_PAGES = ("/health", "/v1/models", "/readiness")  # a router need not serve all pages


def router_recipe(
    spec: ExperimentSpec, workers: Sequence[WorkerAddress], listen: str = LOOPBACK
) -> Recipe:
    """Return a recipe for ``fairbench serve`` with the spec's router and its parameters.

    If the spec's backend has an external router, the recipe starts its command instead. The router
    listens at ``listen``.
    """
    place = LocalPlace(host=listen, listen=listen)
    theirs = None if spec.backend is None else spec.backend.external_router
    if theirs is not None:
        return external_recipe(theirs, workers, spec.model, place)

    def command(ports: Sequence[int]) -> list[str]:
        arguments = [sys.executable, "-m", "fairbench", "serve", "--router", spec.router]
        arguments += ["--host", listen, "--port", str(ports[0])]
        # An open loop is meant to overload the workers, and when it ends no client waits for the
        # rest.
        arguments += ["--max-queue", str(UNLIMITED), "--grace", "0", "--no-client-limit"]
        for worker in workers:
            arguments += ["--worker-url", worker.as_option()]
        for key, value in spec.settings.items():
            if key.startswith(f"{spec.router}."):
                arguments += ["--set", f"{key}={toml_value(value)}"]
        arguments += [*_admission_flags(spec), *objective_flags(spec)]
        return [*arguments, *weight_flags(sent_weights(spec))]

    return Recipe("router", command, place=place)


def _admission_flags(spec: ExperimentSpec) -> list[str]:
    """Return the admission control flags, with the experiment's profile as the default."""
    params = spec.admission
    if params is None:
        return []
    settings = as_settings(ADMISSION, replace(params, profile=params.profile or spec.gpu))
    assigned = (f"{key}={toml_value(value)}" for key, value in settings.items())
    return [part for one in assigned for part in ("--set", one)]


def external_recipe(
    words: Sequence[str], workers: Sequence[WorkerAddress], model: str, place: LocalPlace = HERE
) -> Recipe:
    """Return a recipe for an external router, by the ``words`` of its ``router_command``."""
    urls = [worker.url for worker in workers]
    return Recipe(
        "router",
        lambda ports: filled(words, host=place.listen, ports=ports, workers=urls, model=model),
        ports=PORTS,
        ready=takes_requests,
        place=place,
    )


def takes_requests(url: str) -> bool:
    """Return whether some page reports that the router is up, and no page denies it.

    sglang-router's ``/health`` succeeds before it has any worker; its ``/readiness`` does not.
    """
    found = [status_of(url + page, timeout_s=HEALTH_TIMEOUT_S) for page in READY_PAGES]
    answers = [status for status in found if status is not None]
    return len(answers) == len(found) and min(answers) < 300 and max(answers) < 500


@contextmanager
def running_router(
    spec: ExperimentSpec,
    workers: Sequence[WorkerAddress],
    log_dir: Path,
    *,
    timeout_s: float,
    interrupted: Callable[[], bool] = lambda: False,
    listen: str = LOOPBACK,
) -> Iterator[Server]:
    """Start the router, which ends with the block. Raises the errors of ``start_all``."""
    recipe = router_recipe(spec, workers, listen)
    (server,) = start_all([recipe], log_dir, timeout_s=timeout_s, interrupted=interrupted)
    try:
        yield server
    finally:
        stop_all([server])
