"""Victims: the running requests that lose their memory to a more urgent request, and how."""

from __future__ import annotations

from collections.abc import Container, Generator
from dataclasses import dataclass, field
from math import inf

from fairbench.core import Request
from fairbench.schedulers.base import Preempt, Running, RunningView
from fairbench.schedulers.local.slack import Slack


@dataclass
class Victims:
    """Running requests, ranked by how long they can pause without memory and still be in time.

    A request that is late anyway can pause for any time. No request loses memory twice before
    ``progress`` more tokens, nor after it has waited for ``aging_s``. Memory is copied to the host
    (``swaps``) if that is quicker than recomputing it, or whenever the host has room
    (``always_swaps``).
    """

    slack: Slack
    swaps: bool
    always_swaps: bool
    rescue_s: float
    aging_s: float
    progress: int
    # requests that lose their memory now, by copying
    _swapped: set[Request] = field(default_factory=set)

    def of(
        self,
        request: Request,
        due_s: float,
        running: RunningView,
        admitted: Container[Request],
        now_s: float,
    ) -> list[Running]:
        """Return the requests to preempt for this request, in order; none if all are not enough.

        There are none unless the request would be late within ``rescue_s``. Requests ``admitted``
        in this pass are kept.
        """
        if due_s - now_s - self.slack.states[request].prefill_s > self.rescue_s:
            return []
        needs_s = self.slack.service_s(request)
        chosen = [
            one
            for one in running
            if one.request not in admitted
            and self._may_go(one.request, now_s)
            and (
                self._spare_s(one, now_s) == inf
                or (self.slack.due_s(one.request) > due_s and self._spare_s(one, now_s) >= needs_s)
            )
        ]
        chosen.sort(key=lambda one: (-self._spare_s(one, now_s), self._return_s(one.held_tokens)))
        gone = {one.request for one in chosen}
        return chosen if gone and running.would_fit(request, gone) else []

    def in_order(self, running: RunningView, now_s: float) -> list[Request]:
        """Return the running requests: most spare time first; aged or just returned ones last."""

        def last(one: Running) -> tuple[bool, float]:
            return self._may_go(one.request, now_s), self._spare_s(one, now_s)

        return [one.request for one in sorted(running, key=last, reverse=True)]

    def take(self, one: Running) -> Generator[Preempt, bool, bool]:
        """Take a request's memory in the way that costs least; return whether that was done."""
        tokens = one.held_tokens
        swap = self._copied_s(tokens) < inf and self._copied_s(tokens) == self._return_s(tokens)
        if swap:
            self._swapped.add(
                one.request
            )  # set first, because the host calls ``retracted`` meanwhile
            if (yield Preempt(one.request, swap=True)):
                return True
            self._swapped.discard(one.request)
        return (yield Preempt(one.request))

    def retracted(self, request: Request) -> None:
        """Record that a request has lost its memory, and the time of its next admission."""
        state = self.slack.states[request]
        state.spared = state.produced + self.progress
        if not state.produced:
            state.first_s = None
        tokens = request.input_tokens + state.produced
        swapped = request in self._swapped
        self._swapped.discard(request)
        state.prefill_s = self._back_s(tokens) if swapped else self.slack.prefill_s(tokens)

    def forget(self, request: Request) -> None:
        self._swapped.discard(request)

    def _may_go(self, request: Request, now_s: float) -> bool:
        state = self.slack.states[request]
        return state.produced >= state.spared and now_s - request.arrival_s < self.aging_s

    def _spare_s(self, one: Running, now_s: float) -> float:
        """Return for how long a request can pause and still be in time; inf if it is late."""
        left_s = self.slack.due_s(one.request) - now_s
        return inf if left_s < self.slack.step_s else left_s - self._return_s(one.held_tokens)

    def _return_s(self, tokens: int) -> float:
        """Return the time to restore tokens and compute the next one, with copies both ways."""
        copied_s = self._copied_s(tokens)
        if self.always_swaps and copied_s < inf:
            return copied_s
        return min(self.slack.prefill_s(tokens), copied_s)

    def _copied_s(self, tokens: int) -> float:
        """Return the time to restore tokens by copying; infinite if copying is impossible."""
        return self.slack.swap_s(tokens) + self._back_s(tokens) if self.swaps else inf

    def _back_s(self, tokens: int) -> float:
        """Return the time from the return of the copied tokens until the request continues."""
        return self.slack.swap_s(tokens) + self.slack.prefill_s(1)
