"""Concurrency: the unfinished requests that the gateway has sent, compared with a capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from fairbench.core import Request
from fairbench.schedulers.gateway.saturation.detector import Detector
from fairbench.schedulers.params import NotNegativeInt, PositiveInt


class _Load(NamedTuple):
    requests: int
    tokens: int


class Concurrency(Detector):
    """Sends requests while the requests in progress, or their prompt tokens, are below a capacity.

    llm-d's concurrency-detector (llm-d-router @3fdd2e6): ``requests`` and ``tokens`` are totals of
    the pool over its total capacity, ``larger`` (its ``hybrid``) is the mean over the workers of
    the larger ratio. The detector counts by itself, so it is never late. Two rules are simpler
    here: a whole prompt is counted until its request ends (in llm-d, without its cached part, until
    the first token), and no worker is filtered out: the router sees all workers.
    """

    name = "concurrency"

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``requests`` and ``tokens`` are a worker's capacity, ``by`` the unit.

        ``headroom`` is the number of further requests that may be in a worker's own queue, so that
        no slot stays empty between the end of an answer and the next request from the gateway. The
        default is none.
        """

        requests: PositiveInt = 100
        tokens: PositiveInt = 1_000_000
        by: Literal["requests", "tokens", "larger"] = "requests"
        headroom: NotNegativeInt | None = None

    def __init__(self, params: Params) -> None:
        self.params = params
        self._requests = params.requests + (params.headroom or 0)
        self._under_way: dict[Request, int | None] = {}  # the worker of each request
        self._loads: dict[int, _Load] = {}

    def has_room(self, now_s: float) -> bool:
        workers = self.fleet.workers()
        loads = [self._loads.get(worker, _Load(0, 0)) for worker in workers]
        by_requests = [load.requests / self._requests for load in loads]
        by_tokens = [load.tokens / self.params.tokens for load in loads]
        scores = {
            "requests": by_requests,
            "tokens": by_tokens,
            "larger": list(map(max, by_requests, by_tokens)),
        }[self.params.by]
        return sum(scores) < len(workers)

    def on_sent(self, request: Request, worker: int) -> None:
        self._under_way[request] = worker
        self._add(worker, 1, request.input_tokens)

    def on_moved(self, request: Request, worker: int | None) -> None:
        self._add(self._under_way[request], -1, -request.input_tokens)
        self._under_way[request] = worker
        self._add(worker, 1, request.input_tokens)

    def on_finish(self, request: Request) -> None:
        self._add(self._under_way.pop(request), -1, -request.input_tokens)

    def _add(self, worker: int | None, requests: int, tokens: int) -> None:
        if worker is None:
            return
        load = self._loads.get(worker, _Load(0, 0))
        self._loads[worker] = _Load(load.requests + requests, load.tokens + tokens)
