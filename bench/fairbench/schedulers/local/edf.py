"""The scheduler EDF, earliest deadline first, with preemption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, RunningView, Selection, Setup, WaitingView
from fairbench.schedulers.params import NotNegativeInt, Positive
from fairbench.schedulers.parts.slack import Slack, Victims, chunk_budget
from fairbench.schedulers.views import least_first

# the three groups of requests; requests in ``AGED`` are served first
AGED, IN_TIME, LATE = range(3)


class EDF(LocalScheduler):
    """Earliest deadline first, with preemption; requests that would be late go last.

    Requests are ordered by ``Slack.due_s``: the time by which a request's next token must come, so
    that the request can meet its deadlines at the batch's present pace. A request is late if the
    predicted prefill of its whole prompt would end after ``Slack.due_s``. Late requests go last,
    because their admission would only make other requests late. Requests that have waited for
    ``aging_s`` seconds go first, in order of arrival, so no request starves. The pass stops at the
    first request that does not fit, so that later requests do not take the memory that becomes
    free.

    If a request does not fit, and would be late unless it starts within ``rescue_s`` seconds, it
    preempts running requests, which ``Victims`` chooses. When memory runs out, ``Victims`` also
    chooses the requests that the engine retracts. The preemption rules are new in fairbench; the
    order is classical (Jackson 1955, Liu and Layland 1973).
    """

    name = "edf"
    wants_costs = True
    preemption_optional = True

    @dataclass(frozen=True)
    class Params:
        """Parameters of EDF.

        A request without a deadline is due ``default_s`` seconds after its arrival. ``aging_s`` is
        the wait in seconds after which a request goes first; inf turns aging off. If ``rescue_s``
        is inf, EDF preempts as soon as a request does not fit into memory.

        ``preempt`` selects how preempted requests get their KV cache back: ``recompute``, ``swap``
        or ``quicker`` (the faster way). ``swap`` copies the cache from CPU memory, or recomputes
        the cache if CPU memory has no room. With ``preempt=no``, EDF preempts no request. In
        engines whose steps mix prompts and outputs, ``chunks`` limits the prompt tokens of a step
        so that running requests meet their deadlines (``chunk_budget``).
        """

        default_s: Positive = 30.0
        aging_s: Annotated[float, Gt(0)] = 60.0
        preempt: Literal["quicker", "recompute", "swap", "no"] = "quicker"
        rescue_s: Annotated[float, Ge(0)] = 0.2
        progress: NotNegativeInt = 16
        chunks: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params
        self.preempts = params.preempt != "no"
        self.swaps = params.preempt in ("quicker", "swap")
        self._slack = Slack(params.default_s)
        if params.chunks:
            self.step_tokens = partial(chunk_budget, self._slack)
        self._now_s = 0.0
        self._admitted: set[Request] = set()
        self._victims = Victims(
            self._slack,
            swaps=self.swaps,
            always_swaps=params.preempt == "swap",
            rescue_s=params.rescue_s,
            aging_s=params.aging_s,
            progress=params.progress,
        )

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._slack.prepare(setup)

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._slack.track_request(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._admitted.add(request)
        self._slack.note_admission(request, extend_tokens, self._now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._slack.states[request].produced += tokens

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._victims.note_retraction(request)

    def on_finish(self, request: Request) -> None:
        self._victims.forget_victim(request)
        self._slack.untrack_request(request)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        self._admitted.clear()
        rank = self.ranks(view, now_s)
        for request in least_first(view, rank):
            if (yield request):
                continue
            group, due_s = rank(request)
            if not self.preempts or group != IN_TIME:
                return
            for victim in self._victims.victims_for(
                request, due_s, view.running, self._admitted, now_s
            ):
                if not (yield from self._victims.free_memory(victim)):
                    continue
                if (yield request):
                    break
            else:
                return

    def may_preempt(self, view: WaitingView, now_s: float) -> bool:
        rank = self.ranks(view, now_s)
        first = next(least_first(view, rank), None)
        if first is None:
            return False
        group, due_s = rank(first)
        return group == IN_TIME and self._victims.is_urgent(first, due_s, now_s)

    def ranks(self, view: WaitingView, now_s: float) -> Callable[[Request], tuple[int, float]]:
        """Return a function that ranks a request by a group number, then by a time (s)."""
        slack = self._slack
        if self.setup.costs is not None:
            slack.measure_step(view.running)

        def rank(request: Request) -> tuple[int, float]:
            if now_s - request.arrival_s >= self.params.aging_s:
                return AGED, request.arrival_s
            due_s = slack.due_s(request)
            late = now_s + slack.states[request].prefill_s > due_s
            return (LATE, request.arrival_s) if late else (IN_TIME, due_s)

        return rank

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        self._now_s = now_s
        self._slack.measure_step(running)
        return self._victims.by_spare_time(running, now_s)
