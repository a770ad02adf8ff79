"""Niyama: deadlines combined with remaining work; requests that would be late are relegated."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import sqrt
from typing import Literal

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, RunningView, Selection, Setup, WaitingView
from fairbench.schedulers.local.chunk_budget import chunk_budget
from fairbench.schedulers.local.slack import MAX_CLIENTS, Slack
from fairbench.schedulers.params import NotNegative, Positive


class Niyama(LocalScheduler):
    """Earliest first-token deadline + ``alpha_s`` x prompt tokens first; relegated requests last.

    Niyama (arXiv 2503.22562, later QoServe): only the paper's abstract was read; the rules are
    those of its code (microsoft/sarathi-serve @72339db, branch niyama_asplos2026,
    deadline_scheduler.py and sequence.py). The mix of deadline and remaining prefill is its hybrid
    prioritization: ``alpha_s=0`` is EDF, and a large value puts the shortest prompt first. The
    code's 8 ms per token are 5 s for 650 tokens, which exceeds the differences between its
    interactive deadlines. Eager relegation: when it is the turn of a request that has not run yet,
    and its prefill would end after its first token is due, the request goes behind all others for
    good. Its wait is then unbounded: it waits while requests arrive that can be in time
    (``relegate=false`` prevents this).

    A request with a deadline only for its end gets a first-token deadline: that deadline less
    ``step_s`` x the expected outputs. The code receives the expected outputs, or assumes 0
    (``outputs=none``); ``history``, from the paper, is the mean plus ``sigmas`` standard deviations
    of the client's finished requests, limited to the allowed outputs. A request without any
    deadline is due ``default_s`` after its arrival, the code's last tier. Prefill times come from
    the timing profile, or are ``1 / prefill_tok_s`` per token without a profile; the code uses a
    moving average of its own steps, which are not continuous here.

    ``chunks`` are its dynamic chunks, in engines whose steps mix prompts and outputs: a step
    computes as many prompt tokens as the slack of the running requests allows, sized as in ``edf``
    (by the time until each of them is due, over its remaining tokens). Hints about which request to
    relegate first are not implemented; the code has none either. The pass stops at the first
    request that does not fit. A retracted request keeps its place.
    """

    name = "niyama"
    wants_costs = True
    per_request_tokens = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: seconds per prompt token, output token, and wait without a deadline."""

        alpha_s: NotNegative = 0.008
        step_s: Positive = 0.05
        outputs: Literal["history", "none"] = "history"
        sigmas: NotNegative = 2.0
        default_s: Positive = 1800.0
        prefill_tok_s: Positive = 8500.0
        relegate: bool = True
        chunks: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params
        self.sizes_steps = params.chunks
        self._slack = Slack(params.default_s)  # the slack of running requests, for the chunks
        self._now_s = 0.0
        self._made: dict[Request, int] = {}  # outputs of requests that have run
        # outputs by client: number, sum, squares
        self._past: dict[str, tuple[int, float, float]] = {}
        self._due_s: dict[Request, float] = {}  # request -> time at which its first token is due
        self._relegated: set[Request] = set()

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._slack.prepare(setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._due_s[request] = self._first_token_due_s(request)
        self._slack.arrive(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._made.setdefault(request, 0)
        self._slack.admit(request, extend_tokens, self._now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._made[request] += tokens
        self._slack.states[request].produced += tokens

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        return chunk_budget(self._slack, running, now_s)

    def on_finish(self, request: Request) -> None:
        self._slack.leave(request)
        self._due_s.pop(request, None)
        self._relegated.discard(request)
        if (made := self._made.pop(request, 0)) > 0:
            number, total, squares = self._past.pop(request.client, (0, 0.0, 0.0))
            self._past[request.client] = number + 1, total + made, squares + made * made
            if len(self._past) > MAX_CLIENTS:  # the client heard of longest ago is forgotten
                del self._past[next(iter(self._past))]

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        waiting = [
            (request in self._relegated, self._rank(request), at, request)
            for at, request in enumerate(view.queue_order())
        ]
        heapify(waiting)
        while waiting:
            relegated, rank, at, request = heappop(waiting)
            if not relegated and self._is_late(request, now_s):
                self._relegated.add(request)
                heappush(waiting, (True, rank, at, request))
            elif not (yield request):
                return

    def _rank(self, request: Request) -> float:
        return self._due_s[request] + self.params.alpha_s * request.input_tokens

    def _is_late(self, request: Request, now_s: float) -> bool:
        """Return whether to relegate a request: it never ran, and its first token would be late."""
        if not self.params.relegate or request in self._made:
            return False
        return now_s + self._prefill_s(request) > self._due_s[request]

    def _prefill_s(self, request: Request) -> float:
        if self.setup.costs is None:
            return request.input_tokens / self.params.prefill_tok_s
        return self.setup.costs.prefill_s(0, request.input_tokens)

    def _first_token_due_s(self, request: Request) -> float:
        dues = [] if request.first_token_by_s is None else [request.first_token_by_s]
        if request.deadline_s is not None:
            dues.append(request.deadline_s - self._expected_output(request) * self.params.step_s)
        return min(dues, default=request.arrival_s + self.params.default_s)

    def _expected_output(self, request: Request) -> float:
        """Return the expected output tokens: 0 until a request of the client has finished."""
        number, total, squares = self._past.get(request.client, (0, 0.0, 0.0))
        if self.params.outputs == "none" or not number:
            return 0.0
        mean = total / number
        spread = sqrt(max(0.0, squares / number - mean * mean))
        return min(request.max_new_tokens, mean + self.params.sigmas * spread)
