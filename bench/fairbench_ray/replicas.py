"""Replicas on Ray: a process that places replicas, and the actor that runs each server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from fairbench.errors import UsageError, printable
from fairbench_load.launchers import PROBE
from fairbench_load.processes import reaper
from fairbench_load.processes.addresses import free_ports
from fairbench_load.processes.environment import ServerPython
from fairbench_load.processes.process import GRACE_S, ServerProcess
from fairbench_ray.connection import connected

POLL_S = 0.05  # seconds between two checks for answers while calls are open
IDLE_POLL_S = 0.5  # seconds between two checks for messages while no call is open
CLOSE_S = 30.0  # seconds within which all actors must close their servers
AT_ONCE = 4  # number of concurrent calls of an actor, so that status checks need not wait
CPU, GPU = "CPU", "GPU"

# When an actor ends, Ray kills the actor's direct children. The shell starts the reaper, which ends
# the server, as a grandchild of the actor, so that the reaper survives the actor.
BETWEEN = ("/bin/sh", "-c", '"$@"; exit', "sh")


class NodePython(NamedTuple):
    """The Python that runs servers on a node, and software versions that all nodes must share."""

    python: str
    versions: Mapping[str, str]
    needs_no_gpu: bool


class ReplicaActor:
    """A Ray actor that starts and ends the server of one replica on its node."""

    def __init__(self) -> None:
        self._folder = Path(mkdtemp(prefix="fairbench-"))
        self._log = self._folder / "log"
        self._read = 0
        self._server: ServerProcess | None = None

    def find(self, wanted: ServerPython, chosen: str | None, modules: Sequence[str]) -> NodePython:
        """Find the Python interpreter that runs servers on the node.

        Raises UsageError if fairbench is not installed on the node.
        """
        python = wanted.find_python(chosen)
        command = [python, "-m", PROBE, "versions", *modules]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or "said nothing").splitlines()[-1]
            raise UsageError(f"{python}: {printable(said)[:200]}")
        versions = json.loads(done.stdout.splitlines()[-1])
        return NodePython(python, versions, wanted.needs_no_gpu(python))

    def free_ports(self, count: int) -> list[int]:
        """Return ``count`` different ports that are free on the node."""
        return free_ports(count)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the server. An actor has at most one server."""
        under = (*BETWEEN, sys.executable, "-I", "-S", reaper.__file__, str(GRACE_S))
        self._server = ServerProcess(
            [*under, *command], self._log, environment=environment, reaped=True
        )

    def look(self) -> tuple[int | None, bytes]:
        """Return the server's exit code (None while it runs) and its output since the last call."""
        assert self._server is not None
        # The exit code is read before the log, because the log of a server that has ended is
        # complete.
        exit_code = self._server.exit_code
        with self._log.open("rb") as log:
            log.seek(self._read)
            said = log.read()
        self._read += len(said)
        return exit_code, said

    def stop(self) -> None:
        """End the server, if the actor has started one."""
        if self._server is not None:
            self._server.stop()

    def close(self) -> None:
        """End the server and delete all files that the actor created on the node."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


class Bundles(NamedTuple):
    """The placement of ``replicas`` replicas, each on one node with ``gpus`` GPUs.

    With ``spread``, the replicas are distributed over as many nodes as possible, and Ray places
    either all replicas or none.
    """

    replicas: int
    gpus: int
    spread: bool = False


class Placing(NamedTuple):
    """A progress message with the number of placed replicas and the needs of each replica."""

    placed: int
    needs: str


class ReplicasPlaced(NamedTuple):
    """A message that all replicas are placed, with each replica's node address and GPUs."""

    hosts: tuple[str, ...]
    gpus: int


class RemoteCall(NamedTuple):
    """A request to call a method of a replica's ``ReplicaActor``.

    ``ticket`` is a number that the answer to the request repeats.
    """

    ticket: int
    replica: int
    method: str
    arguments: tuple[Any, ...]


class CallResult(NamedTuple):
    """A message with the return value of the ``RemoteCall`` whose number is ``ticket``."""

    ticket: int
    value: Any


class Broken(NamedTuple):
    """A message that a ``RemoteCall`` failed. ``lost`` is True if the replica has died."""

    ticket: int
    reason: str
    lost: bool


class Close(NamedTuple):
    """A message from the parent process that no more calls follow."""


def serve_replicas(pipe: Connection, address: str) -> None:
    """Place the replicas of a ``Bundles`` message, and answer each ``RemoteCall`` until ``Close``.

    All servers end if the parent process ends or if the connection to the Ray cluster is lost.
    """
    with connected(pipe, address) as ray:
        if ray is None:
            return
        bundles: Bundles = pipe.recv()
        gpus = bundles.gpus if ray.cluster_resources().get(GPU) else 0
        needs = {CPU: 1, **({GPU: gpus} if gpus else {})}
        groups = (
            [ray.util.placement_group([needs] * bundles.replicas, strategy="SPREAD")]
            if bundles.spread
            else [ray.util.placement_group([needs]) for _ in range(bundles.replicas)]
        )
        try:
            if _are_placed(ray, pipe, groups, needs):
                seats = [(group, n) for group in groups for n in range(group.bundle_count)]
                tables = [(ray.util.placement_group_table(group), n) for group, n in seats]
                nodes = [table["bundles_to_node_id"][n] for table, n in tables]
                addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
                pipe.send(ReplicasPlaced(tuple(addresses[node] for node in nodes), gpus))
                _Switchboard(ray, pipe, [_actor(ray, *seat, gpus) for seat in seats]).run()
        finally:
            for group in groups:
                ray.util.remove_placement_group(group)


def _are_placed(ray: Any, pipe: Connection, groups: list[Any], needs: dict[str, int]) -> bool:
    """Wait until Ray has placed all replicas; return False if the parent asks to stop."""
    text = " and ".join(f"{count} {name}" for name, count in needs.items())
    while True:
        states = [ray.util.placement_group_table(group)["state"] for group in groups]
        if (placed := states.count("CREATED")) == len(groups):
            return True
        pipe.send(Placing(placed, text))
        if pipe.poll(IDLE_POLL_S):
            # Before the replicas are placed, the parent process sends only ``Close``.
            return False


def _actor(ray: Any, group: Any, bundle: int, gpus: int) -> Any:
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, bundle)
    actor = ray.remote(ReplicaActor).options(
        num_cpus=1, num_gpus=gpus, max_concurrency=AT_ONCE, scheduling_strategy=strategy
    )
    return actor.remote()


class _Switchboard:
    def __init__(self, ray: Any, pipe: Connection, actors: list[Any]) -> None:
        self._ray, self._pipe, self._actors = ray, pipe, actors
        self._waiting: dict[Any, int] = {}

    def run(self) -> None:
        while True:
            while self._pipe.poll(POLL_S if self._waiting else IDLE_POLL_S):
                message = self._pipe.recv()
                if isinstance(message, Close):
                    closing = [actor.close.remote() for actor in self._actors]
                    self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
                    return
                method = getattr(self._actors[message.replica], message.method)
                self._waiting[method.remote(*message.arguments)] = message.ticket
            if self._waiting:
                done, _ = self._ray.wait(list(self._waiting), timeout=0)
                for ref in done:
                    self._pipe.send(self._answer(ref, self._waiting.pop(ref)))

    def _answer(self, ref: Any, ticket: int) -> CallResult | Broken:
        errors = self._ray.exceptions
        try:
            return CallResult(ticket, self._ray.get(ref))
        except errors.RayTaskError as error:
            return Broken(ticket, f"{error.cause}".partition("\n")[0], lost=False)
        except errors.RayError as error:
            return Broken(ticket, f"{error}".strip().partition("\n")[0], lost=True)
