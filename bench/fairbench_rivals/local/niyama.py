"""Niyama: requests are ordered by deadline and prompt length, and late requests go last."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from math import sqrt
from typing import ClassVar, Literal

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, Setup, WaitingView
from fairbench.schedulers.output_lengths import MAX_CLIENTS
from fairbench.schedulers.params import NotNegative, Positive
from fairbench.schedulers.parts.slack import Slack, chunk_budget


class Niyama(LocalScheduler):
    """A scheduler that orders requests by first-token deadline + ``alpha_s`` x prompt tokens.

    The rules are those of Niyama's code (arXiv 2503.22562, later QoServe; microsoft/sarathi-serve
    @72339db, branch niyama_asplos2026, deadline_scheduler.py and sequence.py). The authors of
    fairbench had only the abstract of the paper. Niyama calls an order by deadline and prompt
    length hybrid prioritization. With ``alpha_s=0``, the order is EDF. With a large ``alpha_s``,
    the shortest prompt goes first. With Niyama's ``alpha_s`` of 8 ms, a prompt of 650 tokens is
    sorted as if its deadline were 5 s later. Niyama relegates late requests: a request that has not
    run yet goes behind all other requests if its first token would be late when its turn comes. The
    wait of a relegated request is unbounded, because requests that can be in time always go first.
    ``relegate=false`` turns relegation off.

    If a request has a deadline only for its end, its first token is due ``step_s`` x (expected
    output tokens) seconds before this deadline. In Niyama's code, the user supplies the expected
    output; otherwise, the code assumes 0 (``outputs=none``). With ``outputs=history``, as in the
    paper, the expected output is the mean plus ``sigmas`` standard deviations of the outputs of the
    client's finished requests, and at most ``max_new_tokens``. A request without any deadline is
    due ``default_s`` seconds after its arrival, as in the last tier of Niyama's code. Prefill times
    come from the timing profile; without a profile, a prompt token takes ``1 / prefill_tok_s``
    seconds. Niyama's code estimates prefill times by a moving average over the engine's steps.

    ``chunks`` turns on Niyama's dynamic chunks in engines whose steps mix prompts and outputs. With
    ``chunks``, a step computes as many prompt tokens as the slack of the running requests allows.
    Like Niyama's code, fairbench ignores the paper's hints about which request to relegate first. A
    scheduling pass stops at the first request that does not fit into memory. A retracted request
    keeps its place in the order of requests.
    """

    name = "niyama"
    wants_costs = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of Niyama's rules, which class ``Niyama`` explains."""

        constants: ClassVar[tuple[str, ...]] = ("sigmas",)

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
        # If ``chunks`` is set, a step computes only as many prompt tokens as the deadlines of the
        # running requests allow.
        self._slack = Slack(params.default_s)
        if params.chunks:
            self.step_tokens = partial(chunk_budget, self._slack)
        self._now_s = 0.0
        # number of output tokens of each request that has run
        self._made: dict[Request, int] = {}
        # number of each client's finished requests, and the sums of their output tokens and of the
        # squared output tokens
        self._past: dict[str, tuple[int, float, float]] = {}
        # time in seconds at which each request's first token is due
        self._due_s: dict[Request, float] = {}
        self._relegated: set[Request] = set()

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._slack.prepare(setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        dues = [] if request.first_token_by_s is None else [request.first_token_by_s]
        if request.deadline_s is not None:
            dues.append(request.deadline_s - self._expected_output(request) * self.params.step_s)
        self._due_s[request] = min(dues, default=request.arrival_s + self.params.default_s)
        self._slack.track_request(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._made.setdefault(request, 0)
        self._slack.note_admission(request, extend_tokens, self._now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._made[request] += tokens
        self._slack.states[request].produced += tokens

    def on_finish(self, request: Request) -> None:
        self._slack.untrack_request(request)
        self._due_s.pop(request, None)
        self._relegated.discard(request)
        if (made := self._made.pop(request, 0)) > 0:
            number, total, squares = self._past.pop(request.client, (0, 0.0, 0.0))
            self._past[request.client] = number + 1, total + made, squares + made * made
            # Forget the client that was updated least recently.
            if len(self._past) > MAX_CLIENTS:
                del self._past[next(iter(self._past))]

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        due_s, alpha_s = self._due_s, self.params.alpha_s
        waiting = [
            (one in self._relegated, due_s[one] + alpha_s * one.input_tokens, at, one)
            for at, one in enumerate(view.queue_order())
        ]
        heapify(waiting)
        while waiting:
            relegated, rank, at, request = heappop(waiting)
            if not relegated and self._is_late(request, now_s):
                self._relegated.add(request)
                heappush(waiting, (True, rank, at, request))
            elif not (yield request):
                return

    def _is_late(self, request: Request, now_s: float) -> bool:
        if not self.params.relegate or request in self._made:
            return False
        costs, tokens = self.setup.costs, request.input_tokens
        prefill_s = costs.prefill_s(0, tokens) if costs else tokens / self.params.prefill_tok_s
        return now_s + prefill_s > self._due_s[request]

    def _expected_output(self, request: Request) -> float:
        """Return the expected output tokens, or 0 before any request of the client has finished."""
        number, total, squares = self._past.get(request.client, (0, 0.0, 0.0))
        if self.params.outputs == "none" or not number:
            return 0.0
        mean = total / number
        spread = sqrt(max(0.0, squares / number - mean * mean))
        return min(request.max_new_tokens, mean + self.params.sigmas * spread)
