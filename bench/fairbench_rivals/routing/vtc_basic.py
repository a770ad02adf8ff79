"""AIBrix's ``vtc-basic``, which shares only its name with VTC: it picks a worker, never a turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

from fairbench.core import Request, Segment
from fairbench.schedulers.params import NotNegative, Positive
from fairbench.schedulers.routing.bases import CountingRouter, draw


class VtcBasic(CountingRouter):
    """A router that sends heavier users to higher-numbered workers, by VTC's counters.

    The source is vllm-project/aibrix @e3e10f9, pkg/plugins/gateway/algorithms/vtc/vtc_basic.go. The
    lowest score wins: |worker's position - min(user's tokens / bucket, workers - 1)| + min(running
    / 100, 1) + a random number from 0 to 0.1; bucket = max(1000, (least + most tokens of any user)
    / 2), over the last 5 minutes. The engine itself orders the requests, so a flood delays all
    clients at the same worker, and no service difference is bounded. Its README has another
    formula.

    Two known defects are kept: outputs are assumed to be 1.5 times the input, and never corrected
    (``true_outputs``); and tokens older than the window are dropped only when the same user
    returns, so that the least and the most tokens are outdated (``drop_all``). A lone user
    determines the bucket alone, so it uses only workers 0 and 1 of any number until about 90
    requests run there.
    """

    name = "vtc-basic"

    @dataclass(frozen=True)
    class Params:
        """Parameters: weights of the two scores and of tokens, and the window in seconds."""

        fairness_weight: NotNegative = 1.0
        utilization_weight: NotNegative = 1.0
        input_weight: NotNegative = 1.0
        output_weight: NotNegative = 2.0
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
        self.tokens: dict[str, float] = {}  # tokens of users in the window
        self._charges: dict[str, deque[tuple[float, float]]] = {}

    def route(self, request: Request, now_s: float) -> int:
        for client in list(self.tokens) if self.params.drop_all else [request.client]:
            self._drop(client, now_s)
        scores = self._scores(request)
        worker = min(scores, key=lambda w: scores[w])
        self._charge(request.client, self.params.input_weight * request.input_tokens, now_s)
        if not self.params.true_outputs:
            guess = ceil(self.params.output_ratio * request.input_tokens)
            self._charge(request.client, self.params.output_weight * guess, now_s)
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
            load = self.reported(worker)
            running = load.in_flight if load.running is None else load.running
            scores[worker] = (
                params.fairness_weight * abs(position - place)
                + params.utilization_weight * min(running / params.max_load, 1)
                + 0.1 * draw(request.request_id, worker)
            )
        return scores

    def _charge(self, client: str, tokens: float, now_s: float) -> None:
        self.tokens[client] = self.tokens.get(client, 0) + tokens
        self._charges.setdefault(client, deque()).append((now_s, tokens))

    def _drop(self, client: str, now_s: float) -> None:
        charges = self._charges.get(client, deque())
        while charges and charges[0][0] < now_s - self.params.window_s:
            self.tokens[client] -= charges.popleft()[1]

    def on_finish(self, request: Request, worker: int, output: Segment, now_s: float) -> None:
        if self._fleet.finish(request, worker) and self.params.true_outputs:
            self._charge(request.client, self.params.output_weight * output.length, now_s)
