"""Earliest deadline first, of those that can still be in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Selection, WaitingView
from fairbench.schedulers.local.least_first import least_first

AGED, IN_TIME, LATE = range(3)  # whose turn comes first


class EDF(LocalScheduler):
    """The request whose first token is due first; those that are late already go last.

    The first token is due by its own deadline, and early enough for ``max_new_tokens``, the only
    length that is known, to be over in time at the pace of the batch as it is. What requests take
    from each other is the time of their prefill, since they decode side by side: a request is late
    if the prefill of its whole prompt, by the timing profile, would end after that. Going first it
    would only make another late; but whoever has waited for ``aging_s`` goes before all that have
    not, in order of arrival, so that nothing starves.

    A request without a deadline has to be over ``default_s`` after its arrival. Stops at the first
    that does not fit, so that room is kept for it. Running requests keep their memory: it does not
    preempt. The rules are this project's; the order is the classical one (Jackson 1955).
    """

    name = "edf"
    wants_costs = True

    @dataclass(frozen=True)
    class Params:
        """``default_s``: the deadline of requests without one; ``aging_s``: the longest wait."""

        default_s: Annotated[float, Gt(0)] = 30.0
        aging_s: Annotated[float, Gt(0)] = 60.0

    def __init__(self, params: Params) -> None:
        self.params = params
        self._prefill_s: dict[Request, float] = {}

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        costs = self.setup.costs
        self._prefill_s[request] = costs.prefill_s(0, request.input_tokens) if costs else 0.0

    def on_finish(self, request: Request) -> None:
        self._prefill_s.pop(request, None)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in least_first(view, self.places(view, now_s)):
            if not (yield request):
                return

    def places(self, view: WaitingView, now_s: float) -> Callable[[Request], tuple[int, float]]:
        """The place of each request in this pass: whose turn it is, and in that the time."""
        step_s = self._step_s(view)

        def place(request: Request) -> tuple[int, float]:
            if now_s - request.arrival_s >= self.params.aging_s:
                return AGED, request.arrival_s
            due_s = self._due_s(request, step_s)
            late = now_s + self._prefill_s[request] > due_s
            return (LATE, request.arrival_s) if late else (IN_TIME, due_s)

        return place

    def _due_s(self, request: Request, step_s: float) -> float:
        """When its first token is due."""
        first_s, end_s = request.first_token_by_s, request.deadline_s
        if first_s is None and end_s is None:
            end_s = request.arrival_s + self.params.default_s
        if end_s is None:
            assert first_s is not None
            return first_s
        start_s = end_s - step_s * (request.max_new_tokens - 1)
        return start_s if first_s is None else min(first_s, start_s)

    def _step_s(self, view: WaitingView) -> float:
        """A decode step of the running batch and one request more; 0 where nobody knows."""
        if self.setup.costs is None:
            return 0.0
        held = sum(one.held_tokens for one in view.running)
        return self.setup.costs.decode_step_s(len(view.running) + 1, held)
