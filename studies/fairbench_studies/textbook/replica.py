"""A simulated replica and load as in a textbook's code listing, for any local scheduler.

As in the textbook's listing, prefill takes no time, memory is checked only when a request is
admitted, and time is counted in steps.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import cast

from fairbench.core import Request, Segment
from fairbench.schedulers.base import LocalScheduler, Preempt, Running, Selection, WaitingView
from fairbench.schedulers.views import NothingRunning
from fairbench_studies.textbook.edf import BLOCK_TOKENS, blocks

BUDGET_BLOCKS, BATCH, MOST_STEPS = 120, 24, 1400
SHORT, LONG = "short", "long"


def printed_load(seed: int = 7, count: int = 80, horizon: int = 200) -> list[Request]:
    """Return the textbook's requests: 70% short and urgent, 30% long with late deadlines."""
    draw, made = random.Random(seed), []
    for number in range(count):
        arrival = draw.randint(0, horizon)
        short = draw.random() < 0.7
        ranges = [(8, 40), (8, 32), (30, 60)] if short else [(64, 200), (160, 320), (220, 360)]
        prompt, answer, slack = (draw.randint(*one) for one in ranges)
        made.append(
            Request(number, SHORT if short else LONG, number, 0, (Segment("p", prompt),),
                    prompt, answer, float(arrival), float(arrival + slack))
        )  # fmt: skip
    return sorted(made, key=lambda request: request.arrival_s)


class InOrder(LocalScheduler):
    """The textbook's FCFS policy, which skips requests that do not fit into KV memory."""

    name = "in-order"

    def select(self, view: WaitingView, now_s: float) -> Selection:
        for request in sorted(view.queue_order(), key=lambda request: request.arrival_s):
            if not (yield request):
                continue


@dataclass(frozen=True)
class Outcome:
    """The results of a run: numbers that the textbook prints, and numbers that fairbench adds."""

    finished: int
    on_time: int
    short_on_time: float
    steps: int
    peak_blocks: int
    steps_over_budget: int
    preempted: int
    tokens_lost: int


class _Batch(NothingRunning):
    """The running requests as a ``RunningView``, with the number of output tokens of each."""

    def __init__(self, produced: dict[Request, int]) -> None:
        self._produced = produced

    @property
    def free_tokens(self) -> int:
        return (BUDGET_BLOCKS - self.used()) * BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self._produced)

    def __iter__(self) -> Iterator[Running]:
        for request, made in self._produced.items():
            yield Running(request, made, request.input_tokens + made, 0)

    def used(self) -> int:
        return sum(blocks(one.held_tokens) for one in self)


class Replica:
    """The textbook's serving loop: each step admits requests by free blocks, then decodes."""

    def __init__(self, scheduler: LocalScheduler, requests: list[Request]) -> None:
        self._scheduler = scheduler
        self._everyone, self._waiting = list(requests), list(requests)
        self._produced: dict[Request, int] = {}
        self._lost: list[int] = []
        self._step = 0
        self.running = _Batch(self._produced)

    def queue_order(self) -> list[Request]:
        """Return the queued requests that have arrived so far."""
        return [request for request in self._waiting if request.arrival_s <= self._step]

    def run(self) -> Outcome:
        """Run until all requests have finished, or up to the textbook's limit of steps."""
        done: dict[Request, int] = {}
        peak = over = 0
        while (self._waiting or self._produced) and self._step < MOST_STEPS:
            self._pass()
            for request in list(self._produced):
                self._produced[request] += 1
                if self._produced[request] >= request.max_new_tokens:
                    done[request] = self._step
            for request in done.keys() & self._produced.keys():
                del self._produced[request]
            used = self.running.used()
            peak, over = max(peak, used), over + (used > BUDGET_BLOCKS)
            self._step += 1
        in_time = [one for one, step in done.items() if step <= (one.deadline_s or 0.0)]
        short = sum(request.client == SHORT for request in self._everyone)
        part = sum(request.client == SHORT for request in in_time) / short
        lost = self._lost
        return Outcome(len(done), len(in_time), part, self._step, peak, over, len(lost), sum(lost))

    def _pass(self) -> None:
        selection = cast(
            Generator[Request | Preempt, bool | None, None],
            self._scheduler.select(cast(WaitingView, self), float(self._step)),
        )
        answer: bool | None = None
        while True:
            try:
                asked = selection.send(answer)
            except StopIteration:
                return
            answer = self._preempt(asked) if isinstance(asked, Preempt) else self._admit(asked)

    def _preempt(self, wish: Preempt) -> bool:
        self._lost.append(self._produced.pop(wish.request))
        self._waiting.append(wish.request)
        return True

    def _admit(self, request: Request) -> bool:
        room = self.running.used() + blocks(request.input_tokens) <= BUDGET_BLOCKS
        if len(self._produced) >= BATCH or not room:
            return False
        self._waiting.remove(request)
        self._produced[request] = 0
        return True
