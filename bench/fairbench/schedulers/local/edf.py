"""Earliest deadline first among requests that can still be in time, with preemption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, RunningView, Selection, Setup, WaitingView
from fairbench.schedulers.local.chunk_budget import chunk_budget
from fairbench.schedulers.local.edf_victims import Victims
from fairbench.schedulers.local.kept_order import least_first
from fairbench.schedulers.local.slack import Slack
from fairbench.schedulers.params import NotNegativeInt, Positive

AGED, IN_TIME, LATE = range(3)  # the lowest group goes first


class EDF(LocalScheduler):
    """The earliest deadline of the first token goes first; late requests go last.

    A request has to be admitted early enough for its first token, and for its expected later tokens
    at the batch's present pace (``Slack``). A request is late if the prefill of its whole prompt,
    by the timing profile, would end after that time. A late request would only make another request
    late. A request that has waited for ``aging_s`` goes before all others, in order of arrival, so
    no request starves. The pass stops at the first request that does not fit, so that room is kept
    for it.

    That request preempts running requests if it would be late within ``rescue_s``. Victims are
    first the running requests that can no longer be in time. Then come requests with later
    deadlines that can pause until it has ended and still return in time; the one with most time to
    spare (less the cost of restoring it) comes first. No request loses memory twice before
    ``progress`` more tokens, nor after it has aged; and none does if the memory would not suffice.
    When memory runs out, the engine retracts requests in the same order. The rules are this
    project's own; the order is the classical one (Jackson 1955, Liu and Layland 1973).
    """

    name = "edf"
    wants_costs = True
    per_request_tokens = True
    orders_retraction = True
    preemption_optional = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``default_s`` is a deadline for requests without one.

        ``aging_s`` is the longest wait. With inf no request ages; with ``rescue_s`` inf, a request
        that would be late is rescued at once.

        ``preempt``: by recomputing, by swapping (or recomputing, if the host has no room), by
        whichever is quicker, or not at all. ``chunks`` (in engines whose steps mix prompts and
        outputs): a step has at most as many prompt tokens as let the running requests keep their
        pace.
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
        self.sizes_steps = params.chunks
        self._slack = Slack(params.default_s)
        self._now_s = 0.0
        self._admitted: set[Request] = set()  # admissions of the present pass
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
        self._slack.arrive(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._admitted.add(request)
        self._slack.admit(request, extend_tokens, self._now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._slack.states[request].produced += tokens

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._victims.retracted(request)

    def on_finish(self, request: Request) -> None:
        self._victims.forget(request)
        self._slack.leave(request)

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
            for victim in self._victims.of(request, due_s, view.running, self._admitted, now_s):
                if not (yield from self._victims.take(victim)):
                    continue
                if (yield request):
                    break
            else:
                return

    def ranks(self, view: WaitingView, now_s: float) -> Callable[[Request], tuple[int, float]]:
        """Return a function that gives a request's rank in this pass: its group, then a time."""
        slack = self._slack
        if self.setup.costs is not None:
            slack.look(view.running)

        def rank(request: Request) -> tuple[int, float]:
            if now_s - request.arrival_s >= self.params.aging_s:
                return AGED, request.arrival_s
            due_s = slack.due_s(request)
            late = now_s + slack.states[request].prefill_s > due_s
            return (LATE, request.arrival_s) if late else (IN_TIME, due_s)

        return rank

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        return chunk_budget(self._slack, running, now_s)

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        self._now_s = now_s
        self._slack.look(running)
        return self._victims.in_order(running, now_s)
