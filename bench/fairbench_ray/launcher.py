"""The launcher that places each replica of a live run on a node of a Ray cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.local_processes import Child, start_child
from fairbench.live.launchers import probe
from fairbench.live.launchers.base import Wanted
from fairbench.live.processes.process import Place
from fairbench_ray.cluster import AUTO
from fairbench_ray.connection import Connected, Unreachable
from fairbench_ray.remote_places import RemotePlace, ReplicaCalls, ReplicaLost
from fairbench_ray.replicas import Bundles, Close, Found, Placed, Placing, serve

POLL_S = 0.2
DISMISS_S = 90.0
ASK_S = 120.0  # a first import takes long on a busy node

log = logging.getLogger(__name__)


class RayLauncher:
    """Places replicas on the nodes of a Ray cluster, each with a processor and its GPUs.

    Nothing that the launcher starts outlives this process. A replica whose node is lost is lost;
    the others continue.
    """

    def __init__(self, address: str | None) -> None:
        """Use the cluster's head, as ``RayCluster`` does. Raises UsageError without Ray."""
        if find_spec("ray") is None:
            raise UsageError("--launcher ray needs the package ray: pip install '.[ray]'")
        self._address = address or AUTO

    def check(self, wanted: Wanted) -> None:
        """Reject shared GPUs. The cluster itself is checked later."""
        if wanted.share_gpus:
            raise UsageError(
                "--share-gpus cannot be combined with --launcher ray, which gives each "
                "server its own GPUs"
            )

    @contextmanager
    def places(
        self, wanted: Wanted, *, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Iterator[Sequence[Place]]:
        child = start_child(serve, self._address)
        try:
            child.pipe.send(Bundles(wanted.replicas, wanted.gpus, wanted.spread))
            placed = self._placed(child, wanted, timeout_s, interrupted)
            with ReplicaCalls.to(child.pipe, placed.hosts) as calls:
                yield _fit_places(calls, placed, wanted)
        finally:
            with suppress(OSError):
                child.pipe.send(Close())
            child.pipe.close()
            child.process.join(DISMISS_S)
            child.process.kill()  # Ray may wait for a head that has ended
            child.process.join()

    def _placed(
        self, child: Child, wanted: Wanted, timeout_s: float, interrupted: Callable[[], bool]
    ) -> Placed:
        until, told = time.monotonic() + timeout_s, False
        placing = Placing(0, "an answer of the cluster")
        while not interrupted():
            match self._heard(child):
                case Placed() as placed:
                    return placed
                case Unreachable(reason):
                    raise UsageError(f"--ray-address {self._address}: {reason}")
                case Placing() as placing if not told:
                    told = True
                    log.info("waiting for places: %s each", placing.needs)
                case Connected() | None:
                    pass
            if time.monotonic() > until:
                had = "not room for all" if wanted.spread else f"room for {placing.placed}"
                raise RunFailed(
                    f"{wanted.asked.format(wanted.replicas)}: the Ray cluster at {self._address} "
                    f"had {had} within {timeout_s:g} s; each needs {placing.needs}"
                )
        raise KeyboardInterrupt

    def _heard(self, child: Child) -> Any:
        """Return the child's next message, or None if there is none at present."""
        try:
            return child.pipe.recv() if child.pipe.poll(POLL_S) else None
        except (EOFError, OSError):  # Ray ends a process that has lost the head
            raise RunFailed(f"the Ray cluster at {self._address} was lost") from None


def _fit_places(calls: ReplicaCalls, placed: Placed, wanted: Wanted) -> list[RemotePlace]:
    """Return the places after a check that all nodes have equal software."""
    modules = tuple(probe.engine_modules(wanted))
    asked = [
        calls.call(number, "find", wanted.python, wanted.chosen, modules)
        for number in range(wanted.replicas)
    ]
    places, versions = [], {}
    for number, (host, future) in enumerate(zip(placed.hosts, asked, strict=True)):
        try:
            found: Found = future.result(ASK_S)
        except (UsageError, ReplicaLost, TimeoutError) as error:
            raise UsageError(f"node {host}: {f'{error}' or 'does not answer'}") from None
        if wanted.gpus and not placed.gpus and not found.needs_no_gpu:
            raise UsageError(
                f"node {host}: Ray has no GPU on this node, and tp = {wanted.gpus} needs one"
            )
        versions[f"node {host}, for {wanted.name}-{number}"] = found.versions
        places.append(RemotePlace(calls, number, found.python))
    probe.check_alike(versions, wanted)
    return places
