"""Justitia: programs run one by one, in the order in which they would end under fair sharing."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import ClassVar, Literal

from fairbench.core import OUTPUT_PRICE, NoBound, Request, ServiceBound
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.params import Positive
from fairbench.schedulers.program_states import ProgramStates
from fairbench_rivals.local.kept_order import KeptOrder

UNKNOWN_POOL_TOKENS = 100_000


class FluidShares:
    """The virtual time of an ideal server, which programs share in proportion to their weights.

    Virtual time passes at the speed ``rate``, divided by the total weight of the programs that the
    ideal server has not finished yet.
    """

    def __init__(self) -> None:
        self.virtual = 0.0
        self._last_s = 0.0
        self._weight = 0.0
        # heap of (virtual end, weight) of all unfinished programs
        self._ends: list[tuple[float, float]] = []

    def advance_to(self, now_s: float, rate: float) -> None:
        """Advance virtual time to ``now_s``, and end each program whose virtual end has passed."""
        left_s = now_s - self._last_s
        self._last_s = now_s
        while self._ends and left_s > 0:
            end, weight = self._ends[0]
            needed_s = (end - self.virtual) * self._weight / rate
            if needed_s > left_s:
                self.virtual += left_s * rate / self._weight
                return
            heappop(self._ends)
            self.virtual, left_s = end, left_s - needed_s
            self._weight = self._weight - weight if self._ends else 0.0

    def add_program(self, cost: float, weight: float) -> float:
        """Add a program that begins now; return the program's virtual end."""
        end = self.virtual + cost / weight
        heappush(self._ends, (end, weight))
        self._weight += weight
        return end


@dataclass(slots=True)
class _Program:
    """An unfinished program: its virtual finish time, and the total cost of its finished calls."""

    end: float = 0.0
    cost: float = 0.0


class Justitia(LocalScheduler):
    """A scheduler that serves the program with the earliest virtual finish time; no preemption.

    In [Justitia], a call with p prompt and d output tokens costs the KV token-time p d + d^2 / 2.
    The cost of a program is the sum of its calls' costs, and is predicted when the first call
    arrives. A program's virtual finish is the virtual time at its arrival plus its cost divided by
    its client's weight. Virtual time passes M / N times as fast as real time. M is the KV pool's
    size in tokens, and N is the number of programs that fair sharing would leave unfinished. The
    policy is fair to programs: a client with twice as many programs gets twice as much service.

    The paper's predictor is a neural network over the prompt's text; fairbench has two other
    predictors. ``oracle`` predicts ``max_new_tokens`` as the output of the first call, and assumes
    that each later call costs as much. If the number of later calls is unknown, ``oracle`` assumes
    that there are none. ``average`` predicts the mean cost of the client's earlier programs. Until
    a first program of the client has ended, ``average`` predicts like ``oracle``. A decode step
    takes ``step_s`` seconds.
    """

    name = "justitia"
    reads_clock = True
    counts_service = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``cost=tokens`` counts input + 2 x output tokens instead of KV token-time."""

        constants: ClassVar[tuple[str, ...]] = ("step_s",)

        cost: Literal["kv", "tokens"] = "kv"
        predictor: Literal["oracle", "average"] = "oracle"
        step_s: Positive = 0.03

    def __init__(self, params: Params) -> None:
        self.params = params
        self.shares = FluidShares()
        self._programs = ProgramStates(_Program)
        self._waiting = KeptOrder()
        self._produced: dict[Request, int] = {}
        # total cost and number of each client's finished programs
        self._mean: dict[str, tuple[float, int]] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        pool = self.setup.pool_tokens or UNKNOWN_POOL_TOKENS
        self.shares.advance_to(now_s, pool / self.params.step_s)
        program, new = self._programs.begin_call(request)
        if new:
            total, count = self._mean.get(request.client, (0.0, 0))
            calls = 1 + (request.calls_left or 0)
            predicted = self._cost(request, request.max_new_tokens) * calls
            if count and self.params.predictor == "average":
                predicted = total / count
            program.end = self.shares.add_program(predicted, self.setup.weight(request.client))
        self._waiting.put_request(request, program.end)
        self._produced[request] = 0

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._waiting.put_request(request, self._programs[request].end)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in self._waiting.within(view):
            if not (yield request):
                return

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._waiting.drop_request(request)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._produced[request] += tokens

    def on_finish(self, request: Request) -> None:
        self._waiting.drop_request(request)
        program = self._programs[request]
        program.cost += self._cost(request, self._produced.pop(request))
        if self._programs.end_call(request):
            total, count = self._mean.get(request.client, (0.0, 0))
            self._mean[request.client] = total + program.cost, count + 1

    def _cost(self, request: Request, outputs: int) -> float:
        if self.params.cost == "tokens":
            return request.input_tokens + OUTPUT_PRICE * outputs
        return request.input_tokens * outputs + outputs * outputs / 2

    def service_bound(self) -> ServiceBound | NoBound:
        return NoBound("justitia bounds the delay of programs, not differences in service")
