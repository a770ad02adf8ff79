"""The router that compares the loads of two random workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.routing.bases import CountingRouter, two_of


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
