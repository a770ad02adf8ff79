"""The process in which Ray places replicas with their keepers, and passes on calls."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from fairbench.execute.on_ray.connection import connected
from fairbench.execute.on_ray.keeper import Keeper

POLL_S = 0.05
IDLE_POLL_S = 0.5
CLOSE_S = 30.0
AT_ONCE = 4  # calls of one keeper: a look must not wait for a stop
CPU, GPU = "CPU", "GPU"


class Bundles(NamedTuple):
    """A request for replicas, each on one node with ``gpus`` GPUs.

    ``spread`` distributes the replicas over as many nodes as possible. Spread replicas get places
    together or not at all.
    """

    replicas: int
    gpus: int
    spread: bool = False


class Placing(NamedTuple):
    """A progress message: the number of placed replicas, and the needs of each."""

    placed: int
    needs: str


class Placed(NamedTuple):
    """A message that all replicas are placed: node addresses by replica number, GPUs of each."""

    hosts: tuple[str, ...]
    gpus: int


class Call(NamedTuple):
    """A call of a method of one replica's ``Keeper``; its answer has the same ticket."""

    ticket: int
    replica: int
    method: str
    arguments: tuple[Any, ...]


class Answer(NamedTuple):
    """The return value of a call."""

    ticket: int
    value: Any


class Broken(NamedTuple):
    """The reason why a call failed: an error in the call, or a ``lost`` replica."""

    ticket: int
    reason: str
    lost: bool


class Close(NamedTuple):
    """A message that no more calls follow."""


def serve(pipe: Connection, address: str) -> None:
    """Place ``Bundles``, then answer each ``Call``, until ``Close``.

    Without its parent, or the cluster, everything ends.
    """
    with connected(pipe, address) as ray:
        if ray is None:
            return
        bundles: Bundles = pipe.recv()
        gpus = bundles.gpus if ray.cluster_resources().get(GPU) else 0
        needs = {CPU: 1, **({GPU: gpus} if gpus else {})}
        groups = _groups(ray, bundles, needs)
        try:
            if _are_placed(ray, pipe, groups, needs):
                seats = [(group, n) for group in groups for n in range(group.bundle_count)]
                pipe.send(Placed(tuple(_hosts(ray, seats)), gpus))
                _Switchboard(ray, pipe, [_keeper(ray, *seat, gpus) for seat in seats]).run()
        finally:
            for group in groups:
                ray.util.remove_placement_group(group)


def _groups(ray: Any, bundles: Bundles, needs: dict[str, int]) -> list[Any]:
    """Return a placement group per replica, or a single one for all if spread."""
    if bundles.spread:
        return [ray.util.placement_group([needs] * bundles.replicas, strategy="SPREAD")]
    return [ray.util.placement_group([needs]) for _ in range(bundles.replicas)]


def _are_placed(ray: Any, pipe: Connection, groups: list[Any], needs: dict[str, int]) -> bool:
    """Wait until all groups are placed; return False if the request is withdrawn."""
    text = " and ".join(f"{count} {name}" for name, count in needs.items())
    while True:
        states = [ray.util.placement_group_table(group)["state"] for group in groups]
        if (placed := states.count("CREATED")) == len(groups):
            return True
        pipe.send(Placing(placed, text))
        if pipe.poll(IDLE_POLL_S):
            return False  # only Close can come now


def _hosts(ray: Any, seats: list[tuple[Any, int]]) -> list[str]:
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    tables = [(ray.util.placement_group_table(group), number) for group, number in seats]
    return [addresses[table["bundles_to_node_id"][number]] for table, number in tables]


def _keeper(ray: Any, group: Any, bundle: int, gpus: int) -> Any:
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, bundle)
    actor = ray.remote(Keeper).options(
        num_cpus=1, num_gpus=gpus, max_concurrency=AT_ONCE, scheduling_strategy=strategy
    )
    return actor.remote()


class _Switchboard:
    def __init__(self, ray: Any, pipe: Connection, keepers: list[Any]) -> None:
        self._ray, self._pipe, self._keepers = ray, pipe, keepers
        self._waiting: dict[Any, int] = {}

    def run(self) -> None:
        while True:
            while self._pipe.poll(POLL_S if self._waiting else IDLE_POLL_S):
                message = self._pipe.recv()
                if isinstance(message, Close):
                    self._close()
                    return
                self._ask(message)
            if self._waiting:
                done, _ = self._ray.wait(list(self._waiting), timeout=0)
                for ref in done:
                    self._pipe.send(self._answer(ref, self._waiting.pop(ref)))

    def _ask(self, call: Call) -> None:
        method = getattr(self._keepers[call.replica], call.method)
        self._waiting[method.remote(*call.arguments)] = call.ticket

    def _answer(self, ref: Any, ticket: int) -> Answer | Broken:
        errors = self._ray.exceptions
        try:
            return Answer(ticket, self._ray.get(ref))
        except errors.RayTaskError as error:
            return Broken(ticket, f"{error.cause}".partition("\n")[0], lost=False)
        except errors.RayError as error:
            return Broken(ticket, f"{error}".strip().partition("\n")[0], lost=True)

    def _close(self) -> None:
        """Close the remaining keeper actors, so that no server process is left behind."""
        closing = [keeper.close.remote() for keeper in self._keepers]
        self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_S)
