"""A toy server with slots, tokens and a clock, for any local scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fairbench.core import Request, Segment
from fairbench.schedulers.base import LocalScheduler, Running
from fairbench.schedulers.drive import Preempt, Tried, drive
from fairbench.schedulers.views import ClientLoad, ListView, client_load


def call(
    number: int,
    client: str,
    tokens: int = 10,
    *,
    new: int = 1,
    program: int | None = None,
    left: int | None = 0,
    depth: int = 0,
    at_s: float = 0.0,
    priority: int = 0,
) -> Request:
    """Return a call that is by default a program of its own."""
    prompt = (Segment(f"p{number}", tokens),)
    program = number + 1 if program is None else program
    return Request(
        number,
        client,
        program,
        depth,
        prompt,
        tokens,
        new,
        at_s,
        priority=priority,
        calls_left=left,
    )


class Server:
    """A server that runs as many requests as fit, and gives each a token in every step of 1 s.

    ``room(request)`` may refuse a request. ``matched`` are the cached tokens of a request.
    """

    def __init__(self, scheduler: LocalScheduler, slots: int = 1, tokens: int = 10**9) -> None:
        self.scheduler = scheduler
        self.slots, self.tokens = slots, tokens
        self.now_s = 0.0
        self.queue: list[Request] = []
        self.matched: dict[Request, int] = {}
        self.view = ListView(self.queue, lambda request: self.matched.get(request, 0))
        self.view.running = self
        self.produced: dict[Request, int] = {}  # tokens of the running requests
        self.kept: dict[Request, int] = {}  # tokens of the preempted requests
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.finished: list[Request] = []
        self.refused: list[Request] = []

    # the running view

    @property
    def free_tokens(self) -> int:
        return self.tokens - sum(one.held_tokens for one in self)

    def __len__(self) -> int:
        return len(self.produced)

    def __iter__(self) -> Iterator[Running]:
        for request, made in list(self.produced.items()):
            yield Running(request, made, request.input_tokens + made, request.max_new_tokens - made)

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        staying = [one for one in self if one.request not in without]
        return self._fits(request, staying)

    def _fits(self, request: Request, running: list[Running]) -> bool:
        taken = sum(one.held_tokens + one.reserved_tokens for one in running)
        need = request.input_tokens + request.max_new_tokens
        return len(running) < self.slots and need <= self.tokens - taken

    # events

    def arrive(self, *requests: Request) -> None:
        for request in requests:
            if not self.scheduler.accepts(request, self.now_s):
                self.refused.append(request)
                continue
            self.scheduler.on_arrival(request, self.view, self.now_s)
            self.view.enter(request)

    def step(self) -> None:
        """Advance by a second: tokens, ends, and then a pass."""
        self.now_s += 1
        for request in list(self.produced):
            self.produced[request] += 1
            self.scheduler.on_tokens(request.client, 1)
            if self.scheduler.on_request_tokens is not None:
                self.scheduler.on_request_tokens(request, 1)
            if self.produced[request] >= request.max_new_tokens:
                self.scheduler.on_output(request, self.produced.pop(request))
                self.scheduler.on_finish(request)
                self.finished.append(request)

    def run_pass(self) -> None:
        taken_back: list[Request] = []

        def preempt(wish: Preempt) -> bool:
            request = wish.request
            if wish.swap or request not in self.produced:
                return False
            self.kept[request] = self.produced.pop(request)
            self.preempted.append(request)
            taken_back.append(request)
            return True

        drive(self.scheduler.select(self.view, self.now_s), self._try_admit, preempt)
        for request in taken_back:
            self.scheduler.on_retract(request, self.view, self.now_s)
            self.view.enter(request)

    def _try_admit(self, request: Request) -> Tried:
        if not self._fits(request, list(self)):
            return Tried.NO_ROOM
        self.view.leave(request)
        extend = request.input_tokens - self.matched.get(request, 0)
        self.scheduler.on_admitted(request, extend, request in self.kept)
        self.produced[request] = self.kept.pop(request, 0)
        self.admitted.append(request)
        return Tried.ADMITTED

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.run_pass()
