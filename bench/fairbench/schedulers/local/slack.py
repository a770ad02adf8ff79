"""Slack: how long a request can wait without memory and still be in time, by the profile."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairbench.core import CostModel, Request
from fairbench.schedulers.base import RunningView, Setup

MAX_CLIENTS = 10_000


class Lengths:
    """Expected output lengths: the mean of a client, or the limit before any request has ended."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}  # client -> number of requests, tokens

    def ended(self, request: Request, tokens: int) -> None:
        requests, total = self._seen.pop(request.client, (0, 0))
        self._seen[request.client] = requests + 1, total + tokens
        if len(self._seen) > MAX_CLIENTS:  # the client heard of longest ago is forgotten
            del self._seen[next(iter(self._seen))]

    def expected(self, request: Request, produced: int) -> int:
        """Return the expected total output of a request: at least one more than produced."""
        requests, total = self._seen.get(request.client, (0, 0))
        mean = -(-total // requests) if requests else request.max_new_tokens
        return min(max(mean, produced + 1), request.max_new_tokens)


@dataclass(slots=True)
class State:
    """The state of an unfinished request.

    ``prefill_s`` is the time for computing or copying back at its next admission. ``first_s`` is
    the approximate time of its first token. The request is spared until it has produced ``spared``
    tokens.
    """

    prefill_s: float
    produced: int = 0
    first_s: float | None = None
    spared: int = 0


class Slack:
    """Deadlines of requests compared with the time that they still need at the batch's pace.

    Decoding requests run side by side, so a request costs another one its prefill, its memory and a
    small part of each step. Without costs (at unmeasured servers) times are 0, and only deadlines
    count. ``default_s`` is the deadline of requests without one.
    """

    def __init__(self, default_s: float) -> None:
        self.lengths = Lengths()
        self.states: dict[Request, State] = {}
        self.step_s = 0.0
        self._default_s = default_s
        self._setup = Setup()

    def prepare(self, setup: Setup) -> None:
        self._setup = setup

    @property
    def costs(self) -> CostModel | None:
        """The costs by the timing profile; None at unmeasured servers."""
        return self._setup.costs

    def prefill_s(self, tokens: int) -> float:
        """Return the prefill time of ``tokens`` uncached tokens, in seconds."""
        costs = self._setup.costs
        return costs.prefill_s(0, tokens) if costs else 0.0

    def swap_s(self, tokens: int) -> float:
        """Return the time to copy ``tokens`` to host memory or back; inf without a copy path."""
        token_s = self._setup.swap_token_s
        return inf if token_s is None else tokens * token_s

    def arrive(self, request: Request) -> None:
        self.states[request] = State(self.prefill_s(request.input_tokens))

    def admit(self, request: Request, extend_tokens: int, now_s: float) -> None:
        """Estimate the first-token time of a request that starts to run now."""
        state = self.states[request]
        if state.first_s is None:
            state.first_s = now_s + self.prefill_s(extend_tokens)

    def leave(self, request: Request) -> None:
        """Stop tracking a request that has ended, and record its output length."""
        state = self.states.pop(request, None)
        if state is not None and state.produced:
            self.lengths.ended(request, state.produced)

    def look(self, running: RunningView) -> None:
        """Set the step time to the decode time of the current batch plus one request."""
        if self._setup.costs is not None:
            held = sum(one.held_tokens for one in running)
            self.step_s = self._setup.costs.decode_step_s(len(running) + 1, held)

    def due_s(self, request: Request) -> float:
        """Return when the request's next token is due to meet all targets; inf without targets."""
        state = self.states[request]
        total = self.lengths.expected(request, state.produced)
        due_s = self._end_s(request, state, total) - self.step_s * (total - state.produced - 1)
        if state.produced or request.first_token_by_s is None:
            return due_s
        return min(due_s, request.first_token_by_s)

    def pace_s(self, request: Request, now_s: float) -> float:
        """Return the mean time that each remaining token may take from now on, in seconds."""
        state = self.states[request]
        total = self.lengths.expected(request, state.produced)
        return (self._end_s(request, state, total) - now_s) / max(total - state.produced, 1)

    def service_s(self, request: Request) -> float:
        """Return how long the request will hold memory once it is admitted, in seconds."""
        state = self.states[request]
        total = self.lengths.expected(request, state.produced)
        return state.prefill_s + self.step_s * (total - state.produced - 1)

    def _end_s(self, request: Request, state: State, total: int) -> float:
        """Return when the last of the request's ``total`` tokens is due; inf if never."""
        end_s, pace_s = request.deadline_s, request.token_every_s
        if pace_s is not None:
            first_s = request.first_token_by_s if state.first_s is None else state.first_s
            if first_s is not None:
                paced_s = first_s + pace_s * (total - 1)
                end_s = paced_s if end_s is None else min(end_s, paced_s)
        if end_s is None and request.first_token_by_s is None:
            return request.arrival_s + self._default_s
        return inf if end_s is None else end_s
