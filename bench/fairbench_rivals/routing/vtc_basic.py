"""AIBrix's ``vtc-basic``, a router that shares only its name with VTC."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from fairbench.core import OUTPUT_PRICE, Request, Segment
from fairbench.schedulers.params import NotNegative, Positive
from fairbench.schedulers.routing.bases import CountingRouter, draw


class VtcBasic(CountingRouter):
    """A router that sends users with more tokens to workers with higher numbers.

    The rules follow vllm-project/aibrix @e3e10f9, pkg/plugins/gateway/algorithms/vtc/vtc_basic.go.
    A request goes to the worker i (of n) with the lowest score |i - min(t / b, n - 1)| + min(r /
    100, 1) + a random number from 0 to 0.1, where r is the worker's running requests, t is the
    user's tokens in the last 5 minutes, and b is max(1000, the mean of the smallest and largest t
    of all users). The engine orders the requests at a worker, so a flood delays all clients at the
    worker. The difference in service between two clients has no upper bound. The score in AIBrix's
    README differs from the score in its code.

    fairbench keeps two known defects of AIBrix's router. An output is assumed to be 1.5 times as
    long as its input, and the real length is ignored (unless ``true_outputs`` is set). A user's
    tokens older than 5 minutes are dropped only at the user's next request (unless ``drop_all`` is
    set). If only one user is active, the user's first 90 requests go only to workers 0 and 1.
    """

    name = "vtc-basic"

    @dataclass(frozen=True)
    class Params:
        """Parameters: weights of tokens and of score terms, and the length of the window (s)."""

        constants: ClassVar[tuple[str, ...]] = (
            "fairness_weight",
            "first_max",
            "input_weight",
            "max_load",
            "min_bucket",
            "output_ratio",
            "output_weight",
            "utilization_weight",
            "window_s",
        )

        fairness_weight: NotNegative = 1.0
        utilization_weight: NotNegative = 1.0
        input_weight: NotNegative = 1.0
        output_weight: NotNegative = float(OUTPUT_PRICE)
        output_ratio: NotNegative = 1.5
        max_load: Positive = 100.0
        min_bucket: Positive = 1000.0
        first_max: Positive = 8000.0
        window_s: Positive = 300.0
        true_outputs: bool = False
        drop_all: bool = False

    def __init__(self, params: Params, workers: int) -> None:
        super().__init__(workers)
        self.params = params
        self.tokens: dict[str, float] = {}  # number of each user's tokens in the window
        self._charges: dict[str, deque[tuple[float, float]]] = {}

    def route(self, request: Request, now_s: float) -> int:
        for client in list(self.tokens) if self.params.drop_all else [request.client]:
            charges = self._charges.get(client, deque())
            while charges and charges[0][0] < now_s - self.params.window_s:
                self.tokens[client] -= charges.popleft()[1]
        scores = self._scores(request)
        worker = min(scores, key=lambda w: scores[w])
        self._add_tokens(request.client, self.params.input_weight * request.input_tokens, now_s)
        if not self.params.true_outputs:
            guess = ceil(self.params.output_ratio * request.input_tokens)
            self._add_tokens(request.client, self.params.output_weight * guess, now_s)
        self._fleet.dispatch(request, worker)
        return worker

    def _scores(self, request: Request) -> dict[int, float]:
        params, workers = self.params, self._fleet.workers
        used = [tokens for tokens in self.tokens.values() if tokens > 0]
        least, most = min(used, default=params.min_bucket), max(used, default=params.first_max)
        bucket = max(params.min_bucket, (least + most) / 2)
        place = min(self.tokens.get(request.client, 0) / bucket, len(workers) - 1)
        scores = {}
        for position, worker in enumerate(workers):
            load = self.reported_load(worker)
            running = load.in_flight if load.running is None else load.running
            scores[worker] = (
                params.fairness_weight * abs(position - place)
                + params.utilization_weight * min(running / params.max_load, 1)
                + 0.1 * draw(request.request_id, worker)
            )
        return scores

    def _add_tokens(self, client: str, tokens: float, now_s: float) -> None:
        self.tokens[client] = self.tokens.get(client, 0) + tokens
        self._charges.setdefault(client, deque()).append((now_s, tokens))

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        if self._fleet.end_request(request, worker) and self.params.true_outputs:
            self._add_tokens(request.client, self.params.output_weight * output.length, now_s)
