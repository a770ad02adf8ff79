"""Routers that ignore cached prefixes, and choose workers in rotation or by load."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.output_lengths import MAX_CLIENTS
from fairbench.schedulers.params import NoParams
from fairbench.schedulers.routing.bases import CountingRouter, FleetRouter, draw


class RoundRobin(FleetRouter):
    """Round robin: the n-th request goes to worker n mod D, where D is the number of workers.

    SGLang uses round robin between data-parallel ranks by default.
    """

    name = "round-robin"
    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)
        self._requests = 0

    def route(self, request: Request, now_s: float) -> int:
        workers = self._fleet.workers
        worker = workers[self._requests % len(workers)]
        self._requests += 1
        return worker


class ClientRoundRobin(FleetRouter):
    """Round robin by client: each client's requests go to the workers in rotation.

    Client number n (from 0) starts at worker n mod D, for D workers. With VTC as the local
    scheduler, differences in service are bounded ([DLPM] Theorem A.6).
    """

    name = "client-round-robin"
    cluster_theorems = MappingProxyType({"VTC Theorem 4.4": "VTC Theorem A.6"})

    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)
        # ``_turns`` maps each client to its next turn, the least recent client first.
        self._turns: dict[str, int] = {}
        self._appeared = 0

    def route(self, request: Request, now_s: float) -> int:
        turn = self._turns.pop(request.client, None)
        if turn is None:
            turn, self._appeared = self._appeared, self._appeared + 1
            if len(self._turns) >= MAX_CLIENTS:
                del self._turns[next(iter(self._turns))]
        self._turns[request.client] = turn + 1
        workers = self._fleet.workers
        return workers[turn % len(workers)]


class LeastLoaded(FleetRouter):
    """A router that chooses the worker with the fewest requests in flight; ties rotate.

    The router ignores clients and cached prefixes.
    """

    name = "least-loaded"
    Params = NoParams

    def __init__(self, params: NoParams, workers: int) -> None:
        super().__init__(workers)

    def route(self, request: Request, now_s: float) -> int:
        worker = self._fleet.least_loaded(self._fleet.everyone)
        self._fleet.dispatch(request, worker)
        return worker


class PowerOfTwo(CountingRouter):
    """A router that chooses the less loaded of two random workers.

    The rule is that of smg, the gateway of SGLang (lightseekorg/smg @73da68c, power_of_two.rs). The
    router compares the KV pool usage of the workers if both report it, and otherwise their requests
    in flight. Clients and cached prefixes do not matter. AIBrix and Ray Serve have routers that
    compare the requests in flight of two random workers.
    """

    name = "power-of-two"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``load`` is the measure, KV pool ``usage`` or requests ``in_flight``."""

        load: Literal["usage", "in_flight"] = "usage"

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params

    def route(self, request: Request, now_s: float) -> int:
        worker = self._choose(request)
        self._fleet.dispatch(request, worker)
        return worker

    def _choose(self, request: Request) -> int:
        first, second = two_of(self._fleet.workers, request)
        usage = self.usage(first), self.usage(second)
        if self.params.load == "usage" and usage[0] is not None and usage[1] is not None:
            return first if usage[0] <= usage[1] else second
        in_flight = self.in_flight_by_worker()
        return first if in_flight[first] <= in_flight[second] else second


def two_of(workers: list[int], request: Request) -> tuple[int, int]:
    """Return two different random workers, or the only worker twice."""
    count = len(workers)
    first = int(draw(request.request_id) * count)
    step = 1 + int(draw(request.request_id, 1) * (count - 1)) if count > 1 else 0
    return workers[first], workers[(first + step) % count]
