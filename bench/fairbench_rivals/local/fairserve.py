"""FairServe: counters normalised by application, and request limits only under overload."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Gt, Le

from fairbench.core import OUTPUT_PRICE, Request
from fairbench.schedulers.base import Selection, Setup, WaitingView
from fairbench.schedulers.params import NotNegative, NotNegativeInt, Positive, PositiveInt
from fairbench_rivals.local.least_counter import LeastCounter

WINDOW_S = 60.0


@dataclass(slots=True)
class _Application:
    """The number of an application's requests, and their total cost ``service``.

    ``service`` starts with the largest possible cost of the application's first request.
    """

    service: float
    requests: int = 1

    @property
    def typical(self) -> float:
        return self.service / self.requests


class FairServe(LeastCounter):
    """A scheduler whose unit of service is a typical request of the client's application.

    [FairServe] divides weighted tokens by the expected need of the application, so that no client
    is served less because its application has long answers. FairServe refuses requests only under
    overload. The first request of an interaction is refused if its user or application exceeds a
    limit of requests per minute; later calls of the interaction are never refused.

    The FairServe paper leaves some terms open; fairbench defines them as follows. An interaction is
    a program, and its first call has depth 0. ``applications`` maps clients to applications; any
    other client is an application by itself. The expected need of an application is the mean cost
    of its requests so far. A worker is overloaded if ``overload_waiting`` requests wait, or if the
    fraction ``overload_usage`` of its KV pool is in use. The counter of a returning client is
    lifted, as in VTC.
    """

    name = "fairserve"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``applications`` maps each client to its application.

        ``user_rpm`` and ``application_rpm`` limit the requests in 60 s; 0 means no limit.
        """

        constants: ClassVar[tuple[str, ...]] = (
            *("input_weight", "normalise", "output_weight", "overload_usage"),
        )

        applications: dict[str, str] = field(default_factory=dict)
        user_rpm: NotNegativeInt = 600
        application_rpm: NotNegativeInt = 0
        overload_waiting: PositiveInt = 64
        overload_usage: Annotated[float, Gt(0), Le(1)] = 0.95
        normalise: bool = True
        input_weight: NotNegative = 1.0
        output_weight: Positive = float(OUTPUT_PRICE)

    def __init__(self, params: Params) -> None:
        self.counters: dict[str, float] = {}
        super().__init__(self.counters)
        self.params = params
        self._applications: dict[str, _Application] = {}
        # times in seconds of each user's and each application's requests, the oldest first
        self._asked: dict[tuple[str, str], deque[float]] = {}
        self._waiting: set[Request] = set()
        self._usage = 0.0

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        setup.check_clients(f"{self.name}.applications", self.params.applications)

    def _application(self, client: str) -> str:
        return self.params.applications.get(client, client)

    def accepts(self, request: Request, now_s: float) -> bool:
        params = self.params
        overloaded = (
            len(self._waiting) >= params.overload_waiting or self._usage >= params.overload_usage
        )
        limits = {
            ("user", request.client): params.user_rpm,
            ("application", self._application(request.client)): params.application_rpm,
        }
        limited = [who for who, limit in limits.items() if limit]
        asked = {who: self._asked.setdefault(who, deque()) for who in limited}
        for times in asked.values():
            while times and times[0] <= now_s - WINDOW_S:
                times.popleft()
        over = any(len(times) >= limits[who] for who, times in asked.items())
        if over and overloaded and request.depth == 0:
            return False
        for times in asked.values():
            times.append(now_s)
        return True

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        super().on_arrival(request, view, now_s)
        self._waiting.add(request)
        most = self._cost(request.input_tokens, request.max_new_tokens)
        self._applications.setdefault(self._application(request.client), _Application(most))

    def select(self, view: WaitingView, now_s: float) -> Selection:
        if pool := self.setup.pool_tokens:
            self._usage = 1 - view.running.free_tokens / pool
        return super().select(view, now_s)

    def _score(self, client: str) -> float:
        return self.counters[client]

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        super().on_admitted(request, extend_tokens, recompute)
        self._waiting.discard(request)
        if not recompute:
            self._applications[self._application(request.client)].requests += 1
            self._charge_service(request.client, self._cost(request.input_tokens, 0))

    def on_tokens(self, client: str, tokens: int) -> None:
        self._charge_service(client, self._cost(0, tokens))

    def on_finish(self, request: Request) -> None:
        self._waiting.discard(request)

    def _cost(self, inputs: int, outputs: int) -> float:
        return self.params.input_weight * inputs + self.params.output_weight * outputs

    def _charge_service(self, client: str, service: float) -> None:
        application = self._applications[self._application(client)]
        application.service += service
        counted = service / application.typical if self.params.normalise else service
        self.counters[client] += counted / self.setup.weight(client)

    def balances(self) -> Mapping[str, float]:
        return self.counters
