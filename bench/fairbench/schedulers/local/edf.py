"""Earliest deadline first among requests that can still be in time, with preemption."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from annotated_types import Ge, Gt
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import (
    LocalScheduler,
    Preempt,
    Running,
    RunningView,
    Selection,
    Setup,
    WaitingView,
)
from fairbench.schedulers.local.chunks import step_tokens
from fairbench.schedulers.local.least_first import least_first
from fairbench.schedulers.local.slack import Slack

AGED, IN_TIME, LATE = range(3)  # whose turn comes first


class EDF(LocalScheduler):
    """The request that must be admitted first goes first; requests that are late go last.

    A request has to be in when its first token is due, and early enough for the tokens that are to
    be expected after it to come in time at the pace of the batch as it is (``Slack``). It is late
    if the prefill of its whole prompt, by the timing profile, would end after that. Going first it
    would only make another late; but whoever has waited for ``aging_s`` goes before all that have
    not, in order of arrival, so that nothing starves. Stops at the first that does not fit, so that
    room is kept for it.

    That one takes the memory of running requests if it would be late within ``rescue_s``: of those
    that cannot be in time any more, then of those that have to be on later than it and can wait
    until it is over and they are back, the one with most time to spare first, what it costs to
    bring it back taken off. Nobody loses memory twice before ``progress`` more tokens, nor once it
    has aged; and nobody at all if it would not be enough. When memory runs out the engine takes it
    back in the same order. The rules are this project's; the order is the classical one (Jackson
    1955, Liu and Layland 1973).
    """

    name = "edf"
    wants_costs = True
    per_request_tokens = True
    orders_retraction = True
    preemption_optional = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: ``default_s`` is a deadline for requests without one.

        ``aging_s`` the longest wait. Nobody ages where that is inf, and whoever would be late is
        rescued at once where ``rescue_s`` is.

        ``preempt``: by recomputing, by swapping (else recomputing, where the host has no room), by
        whichever is quicker, or not at all. ``chunks`` (in engines whose steps mix prompts and
        outputs): a step has no more of prompts than lets the running requests keep their pace.
        """

        default_s: Annotated[FiniteFloat, Gt(0)] = 30.0
        aging_s: Annotated[float, Gt(0)] = 60.0
        preempt: Literal["quicker", "recompute", "swap", "no"] = "quicker"
        rescue_s: Annotated[float, Ge(0)] = 0.2
        progress: Annotated[int, Ge(0)] = 16
        chunks: bool = False

    def __init__(self, params: Params) -> None:
        self.params = params
        self.preempts = params.preempt != "no"
        self.swaps = params.preempt in ("quicker", "swap")
        self.sizes_steps = params.chunks
        self._slack = Slack(params.default_s)
        self._now_s = 0.0
        self._admitted: set[Request] = set()  # by the pass under way
        self._swapped: set[Request] = set()  # what loses its memory now, and is copied

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._slack.prepare(setup)

    # The life of a request.

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._slack.arrive(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._admitted.add(request)
        self._slack.admit(request, extend_tokens, self._now_s)

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._slack.states[request].produced += tokens

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        state = self._slack.states[request]
        state.spared = state.produced + self.params.progress
        if not state.produced:
            state.first_s = None
        tokens = request.input_tokens + state.produced
        swapped = request in self._swapped
        self._swapped.discard(request)
        state.prefill_s = self._back_s(tokens) if swapped else self._slack.prefill_s(tokens)

    def on_finish(self, request: Request) -> None:
        self._swapped.discard(request)
        self._slack.leave(request)

    # A pass.

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        self._admitted.clear()
        place = self.places(view, now_s)
        for request in least_first(view, place):
            if (yield request):
                continue
            for victim in self._victims(request, place(request), view.running):
                if not (yield from self._taken(victim)):
                    continue
                if (yield request):
                    break
            else:
                return

    def places(self, view: WaitingView, now_s: float) -> Callable[[Request], tuple[int, float]]:
        """Return a function that gives a request's rank in this pass: its group, then a time."""
        slack = self._slack
        if self.setup.costs is not None:
            slack.look(view.running, self.setup.costs)

        def place(request: Request) -> tuple[int, float]:
            if now_s - request.arrival_s >= self.params.aging_s:
                return AGED, request.arrival_s
            due_s = slack.due_s(request)
            late = now_s + slack.states[request].prefill_s > due_s
            return (LATE, request.arrival_s) if late else (IN_TIME, due_s)

        return place

    # The clients whose memory it takes.

    def _victims(
        self, request: Request, place: tuple[int, float], running: RunningView
    ) -> list[Running]:
        """Return the requests to preempt for this request, in order; none if all do not suffice."""
        group, due_s = place
        spare_s = due_s - self._now_s - self._slack.states[request].prefill_s
        if not self.preempts or group != IN_TIME or spare_s > self.params.rescue_s:
            return []
        needs_s = self._slack.service_s(request)
        chosen = [
            one
            for one in running
            if one.request not in self._admitted
            and self._may_go(one.request)
            and (
                self._spare_s(one) == inf
                or (self._slack.due_s(one.request) > due_s and self._spare_s(one) >= needs_s)
            )
        ]
        chosen.sort(key=lambda one: (-self._spare_s(one), self._return_s(one.held_tokens)))
        gone = {one.request for one in chosen}
        return chosen if gone and running.would_fit(request, gone) else []

    def _may_go(self, request: Request) -> bool:
        state = self._slack.states[request]
        aged = self._now_s - request.arrival_s >= self.params.aging_s
        return state.produced >= state.spared and not aged

    def _spare_s(self, one: Running) -> float:
        """Return for how long a request can pause and still be in time; inf if it is late."""
        left_s = self._slack.due_s(one.request) - self._now_s
        return inf if left_s < self._slack.step_s else left_s - self._return_s(one.held_tokens)

    def _return_s(self, tokens: int) -> float:
        """Return the time to restore tokens and make the next one.

        Copies count in both directions.
        """
        again_s = self._slack.prefill_s(tokens)
        copied_s = self._copied_s(tokens)
        if self.params.preempt == "swap" and copied_s < inf:
            return copied_s
        return min(again_s, copied_s)

    def _copied_s(self, tokens: int) -> float:
        """Return the time to restore tokens by copying; infinite if copying is impossible."""
        if not self.swaps:
            return inf
        return self._slack.swap_s(tokens) + self._back_s(tokens)

    def _back_s(self, tokens: int) -> float:
        """Return the time from the return of the copied tokens until the request continues."""
        return self._slack.swap_s(tokens) + self._slack.prefill_s(1)

    def _taken(self, one: Running) -> Generator[Preempt, bool, bool]:
        """Take the memory of a running request in the cheapest way.

        Return whether that was possible.
        """
        tokens = one.held_tokens
        swap = self._copied_s(tokens) < inf and self._copied_s(tokens) == self._return_s(tokens)
        if swap:
            self._swapped.add(one.request)  # before ``on_retract``, whenever that comes
            if (yield Preempt(one.request, swap=True)):
                return True
            self._swapped.discard(one.request)
        return (yield Preempt(one.request))

    def step_tokens(self, running: RunningView, now_s: float) -> int:
        return step_tokens(self._slack, self.setup, running, now_s)

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        """Return requests in descending order of spare time.

        Aged or just returned requests come last.
        """
        self._now_s = now_s
        if self.setup.costs is not None:
            self._slack.look(running, self.setup.costs)

        def last(one: Running) -> tuple[bool, float]:
            return self._may_go(one.request), self._spare_s(one)

        return [one.request for one in sorted(running, key=last, reverse=True)]
