"""Classes of priority: a scheduler for each class, so that clients share fairly inside a class."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import LocalScheduler, Preempt, Selection, Setup, WaitingView
from fairbench.schedulers.drive import resume, start
from fairbench.schedulers.list_view import ListScan, QueueView

MAX_CLASSES = 64  # beyond this number, classes without requests are forgotten


class ClassView(QueueView):
    """The waiting requests of one class; ``matched`` are all requests in match order."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: WaitingView
        self.matched: Callable[[bool], list[Request]]

    def match_order(self, *, refresh: bool = True) -> ListScan:
        return ListScan([one for one in self.matched(refresh) if one in self], self)

    def matched_tokens(self, request: Request) -> int:
        return self.whole.matched_tokens(request)


class ByClass(LocalScheduler):
    """Strict priority between classes; ``make()`` returns the scheduler of a class.

    A class is a request's priority, the highest number first unless ``low_first``. A lower class is
    asked unless the last candidate of a higher class found no room. The queue is matched at most
    once in a pass.
    """

    name = "by-class"
    per_request_tokens = True  # a charge belongs to the request's class

    @dataclass(frozen=True)
    class Params:
        """No parameters."""

    def __init__(self, make: Callable[[], LocalScheduler], *, low_first: bool = False) -> None:
        self._make = make
        self._low_first = low_first
        self._plain = make()
        self.wants_costs = self._plain.wants_costs
        self._classes: dict[int, tuple[LocalScheduler, ClassView]] = {}
        self._unfinished: Counter[int] = Counter()

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._plain.prepare(setup)

    def _of(self, request: Request) -> tuple[LocalScheduler, ClassView]:
        if request.priority not in self._classes:
            self._forget_idle()
            scheduler = self._make()
            scheduler.prepare(self.setup)
            self._classes[request.priority] = scheduler, ClassView()
        return self._classes[request.priority]

    def _forget_idle(self) -> None:
        if len(self._classes) >= MAX_CLASSES:
            self._classes = {n: one for n, one in self._classes.items() if self._unfinished[n]}

    def select(self, view: WaitingView, now_s: float) -> Selection:
        ordered: list[Request] = []

        def matched(refresh: bool) -> list[Request]:
            if not ordered:
                ordered.extend(view.match_order(refresh=refresh))
            return ordered

        waiting = [number for number, (_, part) in self._classes.items() if len(part)]
        for number in sorted(waiting, reverse=not self._low_first):
            scheduler, part = self._classes[number]
            part.running, part.whole, part.matched = view.running, view, matched
            if not (yield from _asked(scheduler.select(part, now_s))):
                return

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        scheduler, part = self._of(request)
        self._unfinished[request.priority] += 1
        part.running = view.running
        scheduler.on_arrival(request, part, now_s)
        part.enter(request)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        scheduler, part = self._of(request)
        part.running = view.running
        scheduler.on_retract(request, part, now_s)
        part.enter(request)

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        scheduler, part = self._of(request)
        part.leave(request)
        scheduler.on_admitted(request, extend_tokens, recompute)

    def on_tokens(self, client: str, tokens: int) -> None:
        """Do nothing: ``on_request_tokens`` charges the client in the request's class."""

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        scheduler, _ = self._of(request)
        scheduler.on_tokens(request.client, tokens)
        if scheduler.per_request_tokens:
            scheduler.on_request_tokens(request, tokens)

    def on_output(self, request: Request, tokens: int) -> None:
        self._of(request)[0].on_output(request, tokens)

    def on_finish(self, request: Request) -> None:
        scheduler, part = self._of(request)
        if request in part:
            part.leave(request)
        self._unfinished[request.priority] -= 1
        if not self._unfinished[request.priority]:
            del self._unfinished[request.priority]
        scheduler.on_finish(request)

    def forget(self, client: str) -> None:
        for scheduler, _ in self._classes.values():
            scheduler.forget(client)

    def balances(self) -> Mapping[str, float]:
        """Return the sum of each client's balances over the classes."""
        sums: defaultdict[str, float] = defaultdict(float)
        for scheduler, _ in self._classes.values():
            for client, balance in scheduler.balances().items():
                sums[client] += balance
        return sums

    def service_bound(self) -> ServiceBound | NoBound:
        return self._plain.service_bound()


def _asked(selection: Selection) -> Generator[Request | Preempt, bool, bool]:
    """Ask the scheduler of a class; return whether its last candidate, if any, was admitted."""
    admitted = True
    try:
        candidate = start(selection)
        while candidate is not None:
            admitted = yield candidate
            candidate = resume(selection, admitted)
    finally:
        selection.close()
    return admitted


def unfit_for_classes(scheduler: LocalScheduler) -> str | None:
    """Return why a scheduler cannot run once for each class, None if it can."""
    for does, what in (
        (scheduler.preempts, "preempts"),
        (scheduler.orders_retraction, "chooses which request loses its memory"),
        (scheduler.times_steps, "charges measured time"),
        (type(scheduler).accepts is not LocalScheduler.accepts, "refuses requests"),
    ):
        if does:
            return f"{scheduler.name} {what}"
    return None
