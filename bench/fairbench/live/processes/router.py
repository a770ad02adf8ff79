"""The router process: how it is started in front of the workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairbench.config import ExperimentSpec
from fairbench.config.toml import toml_value
from fairbench.config.weights import weight_flags
from fairbench.live.processes.addresses import LOOPBACK, WorkerAddress
from fairbench.live.processes.start import Recipe, Server, start_all, stop_all

UNLIMITED = 10**9


def router_recipe(spec: ExperimentSpec, workers: Sequence[WorkerAddress]) -> Recipe:
    """A recipe for ``fairbench serve`` with the spec's router and its parameters."""

    def command(ports: Sequence[int]) -> list[str]:
        arguments = [sys.executable, "-m", "fairbench", "serve", "--router", spec.router]
        arguments += ["--host", LOOPBACK, "--port", str(ports[0])]
        # An open loop is meant to overload; and when it is over, nobody waits for the rest.
        arguments += ["--max-queue", str(UNLIMITED), "--grace", "0"]
        for worker in workers:
            arguments += ["--worker-url", worker.as_option()]
        for key, value in spec.settings.items():
            if key.startswith(f"{spec.router}."):
                arguments += ["--set", f"{key}={toml_value(value)}"]
        return [*arguments, *weight_flags(spec.weights)]

    return Recipe("router", command)


@contextmanager
def running_router(
    spec: ExperimentSpec,
    workers: Sequence[WorkerAddress],
    log_dir: Path,
    *,
    timeout_s: float,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[Server]:
    """The router process, ready; it ends with the block. Errors as those of ``start_all``."""
    (server,) = start_all(
        [router_recipe(spec, workers)], log_dir, timeout_s=timeout_s, interrupted=interrupted
    )
    try:
        yield server
    finally:
        stop_all([server])
