"""The router that compares the loads of two random workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.routing.bases import CountingRouter, two_of


class PowerOfTwo(CountingRouter):
    """A router that chooses the less loaded of two random workers.

    The rule follows smg, the gateway of SGLang (lightseekorg/smg @73da68c, power_of_two.rs). The
    router compares the KV pool usage of two random workers. If a worker does not report its usage,
    the router compares the requests in flight. The router ignores clients and cached prefixes.
    AIBrix and Ray Serve have routers that compare the requests in flight of two random workers.
    """

    name = "power-of-two"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``load`` is ``usage`` (of the KV pool) or ``in_flight`` (requests)."""

        load: Literal["usage", "in_flight"] = "usage"

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params

    def route(self, request: Request, now_s: float) -> int:
        first, second = two_of(self._fleet.workers, request)
        one, other = self.usage(first), self.usage(second)
        if self.params.load == "in_flight" or one is None or other is None:
            one, other = self._fleet.unfinished_at(first), self._fleet.unfinished_at(second)
        worker = first if one <= other else second
        self._fleet.dispatch(request, worker)
        return worker
