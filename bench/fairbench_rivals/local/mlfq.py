"""Multi-level feedback queue: the MLFQ scheduler of vllm-ltr, with a rule against starvation."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Preempt, RunningView, Selection, WaitingView
from fairbench.schedulers.params import NotNegative, Positive, PositiveInt
from fairbench_rivals.local.kept_order import KeptOrder


@dataclass(slots=True)
class Progress:
    """An unfinished request's level, its place in the queue, and its run time at this level.

    ``used_s`` is the request's run time at its current level until the time ``counted_s``. While a
    request waits, ``counted_s`` is the end of its last run or, before its first run, its arrival
    time. ``steps`` is the number of decode steps, each with one output token, since the time
    ``counted_s``.
    """

    place: int
    counted_s: float
    level: int = 0
    used_s: float = 0.0
    steps: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.level, self.place


class MLFQ(LocalScheduler):
    """A scheduler with levels: requests that have run for a short time go first and may preempt.

    The rules follow hao-ai-lab/vllm-ltr @13bbf6ff (vllm/core/mlfq_scheduler.py), the baseline of
    "Efficient LLM Scheduling by Learning to Rank". A new request enters the back of level 0. At the
    end of each iteration, a request that ran returns to the front of its level. After more than
    ``quantum_s`` x 2^level seconds of run time at a level, a request moves down a level. Requests
    at higher levels run first; level 0 is the highest. The requests of a level run in queue order.
    If memory or slots are short, requests of lower levels lose their memory, the last request of
    the lowest level first.

    **Starvation.** Each 100th iteration moves the requests that have not run for ``starved_s``
    seconds (3 in vllm-ltr) to the front of level 0; 0 disables this rule. In vllm-ltr @13bbf6ff, a
    ``return`` precedes the code that moves starved requests, so the code never runs.

    In fairbench, a running request runs in every step, so a request that vllm-ltr would keep in
    memory without running it is preempted. Preemption copies the KV values to the host, as in
    vllm-ltr, or discards them if host memory is full. No request is preempted if preempting all
    lower levels would not free enough memory. The run time of a request begins with its admission,
    and all steps between two scheduling passes are assumed to take equally long. The starvation
    rule counts only iterations in which a request waits.
    """

    name = "mlfq"
    preempts = True
    swaps = True
    reads_clock = True

    @dataclass(frozen=True)
    class Params:
        """Parameters: a request starves if it has not run for ``starved_s`` seconds; 0 means never.

        ``starved_every`` is the number of iterations between two searches for starved requests.
        """

        constants: ClassVar[tuple[str, ...]] = ("quantum_s", "starved_every")

        quantum_s: Positive = 0.01
        starved_s: NotNegative = 0.0
        starved_every: PositiveInt = 100

    def __init__(self, params: Params) -> None:
        self.params = params
        self._requests: dict[Request, Progress] = {}
        self._waiting = KeptOrder()
        # keys that sort a request behind (``_back``) or before (``_front``) all other requests
        self._back, self._front = count(), count(-1, -1)
        self._iterations = 0
        self._now_s = 0.0

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._requests[request] = Progress(next(self._back), now_s)
        self._wait(request)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        self._count_run(self._requests[request], now_s)
        self._wait(request)

    def _wait(self, request: Request) -> None:
        self._waiting.put_request(request, self._requests[request].key)

    def select(self, view: WaitingView, now_s: float) -> Selection:
        self._now_s = now_s
        self._requeue(view.running, now_s)
        self._iterations += 1
        if self.params.starved_s and self._iterations % self.params.starved_every == 0:
            # Move requests that have not run for ``starved_s`` seconds to the front of level 0.
            for request in list(self._waiting.within(view)):
                state = self._requests[request]
                if now_s - state.counted_s >= self.params.starved_s:
                    state.level, state.place = 0, next(self._front)
                    self._wait(request)
        for request in self._waiting.within(view):
            if not (yield request) and not (yield from self._make_room(request, view)):
                return

    def _make_room(
        self, request: Request, view: WaitingView
    ) -> Generator[Request | Preempt, bool, bool]:
        """Preempt requests of lower levels until the request runs; return whether it runs."""
        lower = self._last_first(view.running, self._requests[request].level)
        if not (lower and view.running.would_fit(request, set(lower))):
            return False
        for other in lower:
            swapped = self.setup.swap_token_s is not None and (yield Preempt(other, swap=True))
            if (swapped or (yield Preempt(other))) and (yield request):
                return True
        return False

    def _last_first(self, running: RunningView, above: int = -1) -> list[Request]:
        """Return running requests at levels below ``above``, in reverse queue order."""
        known = ((one.request, self._requests[one.request]) for one in running)
        keys = {request: state.key for request, state in known if state.level > above}
        return sorted(keys, key=keys.__getitem__, reverse=True)

    def _requeue(self, running: RunningView, now_s: float) -> None:
        """Move the requests that ran since the last pass to the front of their levels."""
        for request in reversed(self._last_first(running)):
            state = self._requests[request]
            if state.counted_s < now_s:
                self._count_run(state, now_s)
                state.place = next(self._front)

    def _count_run(self, state: Progress, now_s: float) -> None:
        """Add a request's run time until ``now_s``; move it down a level for each used quantum."""
        steps = max(1, state.steps)
        step_s = (now_s - state.counted_s) / steps
        for _ in range(steps):
            state.used_s += step_s
            if state.used_s > self.params.quantum_s * 2.0**state.level:
                state.level, state.used_s = state.level + 1, 0.0
        state.counted_s, state.steps = now_s, 0

    def retraction_order(self, running: RunningView, now_s: float) -> Sequence[Request]:
        self._requeue(running, now_s)
        return self._last_first(running)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        self._waiting.drop_request(request)
        state = self._requests[request]
        state.counted_s, state.steps = self._now_s, 0

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        self._requests[request].steps += tokens

    def on_finish(self, request: Request) -> None:
        self._waiting.drop_request(request)
        del self._requests[request]
