"""The SLO-aware scheduler of a textbook: earliest deadline first with preemption, as printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt
from pydantic import FiniteFloat

from fairbench.core import Request
from fairbench.schedulers.base import LocalScheduler, Preempt, Running, Selection, WaitingView
from fairbench.schedulers.views import least_first

BLOCK_TOKENS = 16
SPARED = 100  # a running request with at most this many remaining tokens is not preempted


class TextbookEDF(LocalScheduler):
    """Earliest deadline first as in a textbook: ordered by deadline, then by length.

    Requests that are about to miss their deadlines ("starving" requests) preempt long requests. The
    scheduler is Code 24.6.1 of a textbook on distributed LLM serving, with the listing's flaws,
    because the flaws affect the printed numbers:

    - A request counts as starving if fewer steps remain until its deadline than its prompt *and*
      answer have tokens, as if each prompt token took a step. Requests past their
      deadlines also count as starving.
    - Memory is freed for the first starving request in the queue, not for the most urgent request.
    - In the scheduling pass after a preemption, the freed memory goes to the request with the
      earliest deadline. This is often the preempted request itself.
    - The textbook's code never checks whether running requests outgrow the memory. If they do,
      fairbench's engines preempt requests.

    Each step lasts ``step_s`` seconds. A request without a deadline is due ``default_s`` seconds
    after its arrival. Unlike in the textbook's listing, preempted requests keep their output tokens
    and are recomputed.
    """

    name = "edf-textbook"
    preempts = True
    work_conserving = False  # blocks freed by preemption stay unused until the next scheduling pass

    @dataclass(frozen=True)
    class Params:
        """Parameters. ``step_s`` is the duration of a decode step in seconds."""

        step_s: Annotated[FiniteFloat, Gt(0)] = 0.03
        default_s: Annotated[FiniteFloat, Gt(0)] = 30.0

    def __init__(self, params: Params) -> None:
        self.params = params

    def wake_s(self, view: WaitingView, now_s: float) -> float | None:
        return now_s + self.params.step_s

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in least_first(view, lambda one: (self._due_s(one), _tokens(one))):
            if not (yield request):
                continue  # skip a request that does not fit into memory
        starving = (one for one in view.queue_order() if self._starves(one, now_s))
        if (first := next(starving, None)) is not None:
            for victim in victims(first, view.running, view.running.free_tokens):
                yield Preempt(victim)

    def _due_s(self, request: Request) -> float:
        if request.deadline_s is not None:
            return request.deadline_s
        due_s = request.next_deadline_s
        return request.arrival_s + self.params.default_s if due_s is None else due_s

    def _starves(self, request: Request, now_s: float) -> bool:
        return self._due_s(request) - now_s < _tokens(request) * self.params.step_s


def victims(starving: Request, running: Iterable[Running], free_tokens: int) -> Iterator[Request]:
    """Yield requests to preempt until the prompt fits, sorted by remaining tokens, most first.

    Args:
        starving: The request whose prompt needs KV memory.
        running: The requests that are running at the worker.
        free_tokens: The free KV memory in tokens, of which only whole blocks count.
    """
    need, free = blocks(starving.input_tokens), free_tokens // BLOCK_TOKENS
    for one in sorted(running, key=_remaining, reverse=True):
        if free >= need or _remaining(one) <= SPARED:
            return
        free += blocks(one.held_tokens)
        yield one.request


def blocks(tokens: int) -> int:
    """Return the number of memory blocks that hold ``tokens`` tokens."""
    return -(-tokens // BLOCK_TOKENS)


def _tokens(request: Request) -> int:
    return request.input_tokens + request.max_new_tokens


def _remaining(one: Running) -> int:
    return one.request.max_new_tokens - one.output_tokens
