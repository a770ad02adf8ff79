"""Power of two choices: the less loaded of two random workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.routing.bases import CountingRouter, draw


class PowerOfTwo(CountingRouter):
    """A router that picks the less loaded of two random workers, the first on a tie.

    The rule is that of smg, SGLang's gateway (lightseekorg/smg @73da68c, power_of_two.rs). The
    router compares the KV pool usage if both workers report it, else the requests in flight. The
    router sees neither clients nor prefixes. AIBrix and Ray Serve ship the same idea on requests in
    flight.
    """

    name = "power-of-two"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``load`` is ``usage`` as above, or ``in_flight``, which ignores KV pools."""

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
        in_flight = self.in_flight()
        return first if in_flight[first] <= in_flight[second] else second


def two_of(workers: list[int], request: Request) -> tuple[int, int]:
    """Return two different random workers, or the only worker twice."""
    count = len(workers)
    first = int(draw(request.request_id) * count)
    step = 1 + int(draw(request.request_id, 1) * (count - 1)) if count > 1 else 0
    return workers[first], workers[(first + step) % count]
