"""Autellix: priority queues in which calls of the programs with the least service go first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from math import inf
from typing import ClassVar, Literal

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Preempt, Selection, WaitingView
from fairbench.schedulers.params import NotNegative, Positive, PositiveInt
from fairbench.schedulers.program_states import ProgramStates
from fairbench_rivals.local.autellix_calls import CallTimes, ProgramTimes, Promotions
from fairbench_rivals.local.kept_order import KeptOrder


class Autellix(LocalScheduler):
    """A scheduler with priority queues that serves the programs with the least service first.

    The rules follow [Autellix] Alg. 1. A new call enters a queue that depends on the service of its
    program so far. A program's service is the sum over its finished calls (``plas``), or over the
    longest chain of its calls (``atlas``). Calls in the same queue are served in order of arrival.
    A call whose run time reaches the quantum of its queue moves to the next lower queue. A call
    whose program has waited ``beta`` times its service time moves up to the first queue. A waiting
    call preempts calls of lower queues. The policy is fair to programs, not to clients.

    The paper leaves some values open, which fairbench sets as follows. The number of queues is
    ``queues``. Queue i serves programs with less than ``first_s`` x 2^i seconds of service; its
    quantum is equally long. The run time of a call is ``step_s`` per output token and
    ``prefill_token_s`` per uncached prompt token. Autellix swaps preempted calls to host memory;
    fairbench recomputes preempted calls. Autellix checks for preemptions every few steps; fairbench
    checks every ``preempt_every_s`` seconds.
    """

    name = "autellix"
    preempts = True
    counts_service = True

    @dataclass(frozen=True)
    class Params:
        """Parameters. If ``beta`` is 0, no call is promoted, so long programs may starve."""

        constants: ClassVar[tuple[str, ...]] = ("preempt_every_s",)

        policy: Literal["atlas", "plas"] = "atlas"
        queues: PositiveInt = 8
        first_s: Positive = 2.0
        beta: NotNegative = 10.0
        preempt: bool = True
        preempt_every_s: NotNegative = 0.3
        step_s: Positive = 0.03
        prefill_token_s: Positive = 1e-4

    def __init__(self, params: Params) -> None:
        self.params = params
        self._programs = ProgramStates(ProgramTimes)
        self._calls: dict[Request, CallTimes] = {}
        self._places = count()
        self._waiting = KeptOrder()
        self._promotions = Promotions(params.beta, self._programs)
        self._preempted_s = self._now_s = 0.0

    def _quantum_s(self, queue: int) -> float:
        return self.params.first_s * 2.0**queue

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        program, _ = self._programs.begin_call(request)
        last = self.params.queues - 1
        fitting = (one for one in range(last) if program.service_s < self._quantum_s(one))
        queue = next(fitting, last)
        place, quantum_s = next(self._places), self._quantum_s(queue)
        call = CallTimes(program.service_s, queue, place, quantum_s, now_s)
        self._calls[request] = program.calls[request] = call
        self._wait_in_queue(request, call)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._calls[request].since_s = now_s
        self._wait_in_queue(request, self._calls[request])

    def _wait_in_queue(self, request: Request, call: CallTimes) -> None:
        self._waiting.put_request(request, (call.queue, call.place))
        call.promoted_at_s = inf
        self._promotions.expect(request, call)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        self._promote(now_s)
        due = self.params.preempt and now_s - self._preempted_s >= self.params.preempt_every_s
        for request in self._waiting.within(view):
            if (yield request):
                continue
            if not due:
                return
            self._preempted_s = now_s
            queue = self._calls[request].queue
            lower = [one.request for one in view.running if self._calls[one.request].queue > queue]
            for victim in sorted(lower, key=self._queue_place, reverse=True):
                yield Preempt(victim)
                if (yield request):
                    break
            else:
                return

    def _queue_place(self, request: Request) -> tuple[int, int]:
        call = self._calls[request]
        return call.queue, call.place

    def _promote(self, now_s: float) -> None:
        for request, call in self._promotions.due_calls(now_s, self._calls):
            if call.since_s is not None:
                call.total_waited_s += now_s - call.since_s
            call.since_s, call.waited_s, call.busy_s = now_s, 0.0, 0.0
            call.queue, call.place = 0, next(self._places)
            call.quantum_s = self._quantum_s(0)
            self._waiting.put_request(request, (call.queue, call.place))

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        call = self._calls[request]
        call.end_wait(self._now_s)
        self._waiting.drop_request(request)
        self._add_busy_s(call, extend_tokens * self.params.prefill_token_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._add_busy_s(self._calls[request], tokens * self.params.step_s)

    def _add_busy_s(self, call: CallTimes, seconds: float) -> None:
        call.busy_s += seconds
        call.total_busy_s += seconds
        call.quantum_s -= seconds
        while call.quantum_s <= 0 and call.queue < self.params.queues - 1:
            call.queue, call.place = call.queue + 1, next(self._places)
            call.quantum_s += self._quantum_s(call.queue)

    def on_finish(self, request: Request) -> None:
        call, program = self._calls.pop(request), self._programs[request]
        del program.calls[request]
        self._waiting.drop_request(request)
        program.waited_s += call.total_waited_s
        if self.params.policy == "plas":
            program.service_s += call.total_busy_s
        else:
            program.service_s = max(program.service_s, call.started_at_s + call.total_busy_s)
        for sibling, other in program.calls.items():
            self._promotions.expect(sibling, other)
        self._programs.end_call(request)
