"""The slack of requests: the time that a request can wait and still meet its deadline.

The timing profile predicts the times of prefills and decode steps. The slack of running requests
decides which requests are preempted (``Victims``), and how many prompt tokens a step may compute
(``chunk_budget``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Generator
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter, itemgetter

from fairbench.core import CostModel, Request
from fairbench.schedulers.base import Preempt, Running, RunningView, Setup
from fairbench.schedulers.output_lengths import MeanAnswers

HELD_TOKENS = attrgetter("held_tokens")


@dataclass(slots=True)
class State:
    """The state of a request that has not finished.

    ``prefill_s`` is the time in seconds to compute the prompt or to copy the KV cache back at the
    next admission. ``first_s`` is the estimated time of the first token. The request cannot be
    preempted until it has produced ``spared`` tokens.
    """

    prefill_s: float
    produced: int = 0
    first_s: float | None = None
    spared: int = 0


class Slack:
    """An estimate of requests' slack, from their deadlines and the batch's pace.

    A running request is assumed to delay other requests only through its prefill, a small part of
    each decode step, and its use of KV memory. Without a timing profile, all times are 0 and only
    deadlines count. ``default_s`` is the deadline, in seconds after arrival, of a request without a
    deadline.
    """

    def __init__(self, default_s: float) -> None:
        self.lengths = MeanAnswers()
        self.states: dict[Request, State] = {}
        self.step_s = 0.0
        self._default_s = default_s
        self._setup = Setup()

    def prepare(self, setup: Setup) -> None:
        self._setup = setup

    @property
    def costs(self) -> CostModel | None:
        """The cost model of the timing profile, or None for a server without a timing profile."""
        return self._setup.costs

    def prefill_s(self, tokens: int) -> float:
        """Return the prefill time of ``tokens`` uncached tokens, in seconds."""
        costs = self._setup.costs
        return costs.prefill_s(0, tokens) if costs else 0.0

    def swap_s(self, tokens: int) -> float:
        """Return the seconds to copy ``tokens`` to CPU memory or back, or inf if impossible."""
        token_s = self._setup.swap_token_s
        return inf if token_s is None else tokens * token_s

    def track_request(self, request: Request) -> None:
        self.states[request] = State(self.prefill_s(request.input_tokens))

    def note_admission(self, request: Request, extend_tokens: int, now_s: float) -> None:
        """Estimate the time of the first token of a request that starts to run now."""
        state = self.states[request]
        if state.first_s is None:
            state.first_s = now_s + self.prefill_s(extend_tokens)

    def untrack_request(self, request: Request) -> None:
        state = self.states.pop(request, None)
        if state is not None and state.produced:
            self.lengths.learn(request.client, state.produced)

    def measure_step(self, running: RunningView) -> None:
        """Set ``step_s`` to the time of a decode step of the batch with one more request."""
        if self._setup.costs is not None:
            held = sum(map(HELD_TOKENS, running))
            self.step_s = self._setup.costs.decode_step_s(len(running) + 1, held)

    def due_s(self, request: Request) -> float:
        """Return the time by which the next token must come to meet all deadlines, or inf."""
        state = self.states[request]
        total = self.lengths.expected_total(request, state.produced)
        due_s = self._end_s(request, state, total) - self.step_s * (total - state.produced - 1)
        if state.produced or request.first_token_by_s is None:
            return due_s
        return min(due_s, request.first_token_by_s)

    def pace_s(self, request: Request, now_s: float) -> float:
        """Return the mean time in seconds that each remaining token may take."""
        state = self.states[request]
        total = self.lengths.expected_total(request, state.produced)
        return (self._end_s(request, state, total) - now_s) / max(total - state.produced, 1)

    def service_s(self, request: Request) -> float:
        """Return the seconds for which the request will probably hold memory after admission."""
        state = self.states[request]
        total = self.lengths.expected_total(request, state.produced)
        return state.prefill_s + self.step_s * (total - state.produced - 1)

    def _end_s(self, request: Request, state: State, total: int) -> float:
        end_s, pace_s = request.deadline_s, request.token_every_s
        if pace_s is not None:
            first_s = request.first_token_by_s if state.first_s is None else state.first_s
            if first_s is not None:
                paced_s = first_s + pace_s * (total - 1)
                end_s = paced_s if end_s is None else min(end_s, paced_s)
        if end_s is None and request.first_token_by_s is None:
            return request.arrival_s + self._default_s
        return inf if end_s is None else end_s


LEAST_TOKENS, MOST_TOKENS = 64, 16_384  # limits on the prompt tokens in a step


def chunk_budget(slack: Slack, running: RunningView, now_s: float) -> int:
    """Return the largest step (tokens) in which decoding requests still meet their deadlines.

    A decoding request that must produce n tokens in t seconds limits a step to t / n seconds.
    [Sarathi] limits a step to the target time between tokens. Requests that will be late in any
    case are ignored. The time of a step is its prefill time plus its decode time.
    """
    costs = slack.costs
    if costs is None:
        return MOST_TOKENS
    slack.measure_step(running)
    decoding = [one.request for one in running if slack.states[one.request].produced]
    paces = [slack.pace_s(request, now_s) for request in decoding]
    left_s = min((pace for pace in paces if pace >= slack.step_s), default=inf) - slack.step_s
    fitting = bisect_right(
        range(LEAST_TOKENS, MOST_TOKENS), left_s, key=lambda tokens: costs.prefill_s(0, tokens)
    )
    return len(decoding) + LEAST_TOKENS + max(fitting - 1, 0)


@dataclass
class Victims:
    """The choice of victims, which are preempted for a more urgent request.

    The first victims are running requests that can no longer meet their deadlines. The next victims
    are requests with later deadlines that can pause until the more urgent request has ended and
    still meet their deadlines. Requests with more spare time are preempted first; spare time
    excludes the time to restore a request's memory. A preempted request is not preempted again
    until it has produced ``progress`` more tokens. A request that arrived at least ``aging_s``
    seconds ago is never preempted. No request is preempted if preempting all victims would free too
    little memory. With ``swaps``, the victims' KV cache is copied to CPU memory if copying is
    faster than recomputing. With ``always_swaps``, the KV cache is copied to CPU memory whenever
    CPU memory has room.
    """

    slack: Slack
    swaps: bool
    always_swaps: bool
    rescue_s: float
    aging_s: float
    progress: int
    # ``_swapped`` holds the requests whose KV cache is being copied to CPU memory.
    _swapped: set[Request] = field(default_factory=set)

    def victims_for(
        self,
        request: Request,
        due_s: float,
        running: RunningView,
        admitted: Container[Request],
        now_s: float,
    ) -> list[Running]:
        """Return the requests to preempt for ``request``.

        The list of victims is empty if ``request`` is not urgent or if all victims together would
        free too little memory. Requests that this pass has ``admitted`` are not preempted.
        """
        if not self.is_urgent(request, due_s, now_s):
            return []
        needs_s = self.slack.service_s(request)
        ranked: list[tuple[float, float, Running]] = []
        for one in running:
            if one.request in admitted or not self._may_go(one.request, now_s):
                continue
            one_due_s, return_s = self.slack.due_s(one.request), self._return_s(one.held_tokens)
            spare_s = self._spare_s(one_due_s - now_s, return_s)
            if spare_s == inf or (one_due_s > due_s and spare_s >= needs_s):
                ranked.append((-spare_s, return_s, one))
        ranked.sort(key=itemgetter(0, 1))
        chosen = [one for _, _, one in ranked]
        gone = {one.request for one in chosen}
        return chosen if gone and running.would_fit(request, gone) else []

    def is_urgent(self, request: Request, due_s: float, now_s: float) -> bool:
        """Return whether the request would be late unless it starts within ``rescue_s`` seconds."""
        return due_s - now_s - self.slack.states[request].prefill_s <= self.rescue_s

    def by_spare_time(self, running: RunningView, now_s: float) -> list[Request]:
        """Return running requests, most spare time first, but recently preempted requests last."""

        def last(one: Running) -> tuple[bool, float]:
            left_s = self.slack.due_s(one.request) - now_s
            spare_s = self._spare_s(left_s, self._return_s(one.held_tokens))
            return self._may_go(one.request, now_s), spare_s

        return [one.request for one in sorted(running, key=last, reverse=True)]

    def free_memory(self, one: Running) -> Generator[Preempt, bool, bool]:
        """Preempt a request, and return whether the engine freed the request's memory."""
        tokens = one.held_tokens
        swap = self._copied_s(tokens) < inf and self._copied_s(tokens) == self._return_s(tokens)
        if swap:
            # During the ``yield``, the engine calls ``note_retraction``, which reads ``_swapped``.
            self._swapped.add(one.request)
            if (yield Preempt(one.request, swap=True)):
                return True
            self._swapped.discard(one.request)
        return (yield Preempt(one.request))

    def note_retraction(self, request: Request) -> None:
        """Record that a request has lost its memory, and estimate its next admission."""
        state = self.slack.states[request]
        state.spared = state.produced + self.progress
        if not state.produced:
            state.first_s = None
        tokens = request.input_tokens + state.produced
        swapped = request in self._swapped
        self._swapped.discard(request)
        state.prefill_s = self._back_s(tokens) if swapped else self.slack.prefill_s(tokens)

    def forget_victim(self, request: Request) -> None:
        self._swapped.discard(request)

    def _may_go(self, request: Request, now_s: float) -> bool:
        state = self.slack.states[request]
        return state.produced >= state.spared and now_s - request.arrival_s < self.aging_s

    def _spare_s(self, left_s: float, return_s: float) -> float:
        """Return how long (s) a request can pause without being late; inf if it is already late."""
        return inf if left_s < self.slack.step_s else left_s - return_s

    def _return_s(self, tokens: int) -> float:
        """Return the time (s) to copy or recompute the tokens of a preempted request."""
        copied_s = self._copied_s(tokens)
        if self.always_swaps and copied_s < inf:
            return copied_s
        return min(self.slack.prefill_s(tokens), copied_s)

    def _copied_s(self, tokens: int) -> float:
        """Return the seconds to copy tokens to CPU memory and back, or inf if impossible."""
        out_s = self.slack.swap_s(tokens) if self.swaps else inf
        return out_s if out_s == inf else out_s + self._back_s(tokens)

    def _back_s(self, tokens: int) -> float:
        """Return the seconds from readmission to the next token, with copying from CPU memory."""
        return self.slack.swap_s(tokens) + self.slack.prefill_s(1)
