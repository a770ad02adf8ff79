"""A scheduler with strict priority between classes of requests, and fair sharing within a class."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairbench.core import NoBound, Request, ServiceBound
from fairbench.schedulers.base import LocalScheduler, Preempt, Selection, Setup, WaitingView
from fairbench.schedulers.drive import first_candidate, next_candidate
from fairbench.schedulers.views import (
    ClientLoad,
    ListScan,
    QueueView,
    Running,
    RunningView,
    client_load,
)

# If more than ``MAX_CLASSES`` priority classes exist, classes without requests are deleted.
MAX_CLASSES = 64


class ClassView(QueueView):
    """The waiting requests of one priority class.

    ``matched`` returns the waiting requests of all classes, longest cached prefix first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whole: WaitingView
        self.matched: Callable[[bool], list[Request]]

    def match_order(self, *, refresh: bool = True) -> ListScan:
        return ListScan([one for one in self.matched(refresh) if one in self], self)

    def matched_tokens(self, request: Request) -> int:
        return self.whole.matched_tokens(request)


@dataclass(frozen=True)
class ClassBatch:
    """The running requests of one class (``mine``), as a part of the batch ``whole``."""

    whole: RunningView
    mine: Sequence[Running]

    @property
    def free_tokens(self) -> int:
        return self.whole.free_tokens

    def __len__(self) -> int:
        return len(self.mine)

    def __iter__(self) -> Iterator[Running]:
        return iter(self.mine)

    def load(self, client: str) -> ClientLoad:
        return client_load(self, client)

    def would_fit(self, request: Request, without: Collection[Request]) -> bool:
        return self.whole.would_fit(request, without)


class ByClass(LocalScheduler):
    """Strict priority between classes of requests, each with its own local scheduler.

    Requests of equal priority form a class, and ``make()`` creates its scheduler. The class with
    the highest priority number goes first, or the class with the lowest number if ``low_first``. If
    the last candidate of a class does not fit into memory, the admission pass ends before the next
    class. In a pass, the queue is matched with the prefix cache at most once.
    """

    name = "by-class"

    @dataclass(frozen=True)
    class Params:
        """No parameters."""

    def __init__(self, make: Callable[[], LocalScheduler], *, low_first: bool = False) -> None:
        self._make = make
        self._low_first = low_first
        self._plain = make()
        self.cache_aware = self._plain.cache_aware
        if self._plain.retraction_order is not None:
            self.retraction_order = self._order_by_class
        self.wants_costs = self._plain.wants_costs
        self._classes: dict[int, tuple[LocalScheduler, ClassView]] = {}
        self._unfinished: Counter[int] = Counter()

    def prepare(self, setup: Setup) -> None:
        super().prepare(setup)
        self._plain.prepare(setup)

    def _class_of(self, request: Request) -> tuple[LocalScheduler, ClassView]:
        if request.priority not in self._classes:
            if len(self._classes) >= MAX_CLASSES:
                self._classes = {n: one for n, one in self._classes.items() if self._unfinished[n]}
            scheduler = self._make()
            scheduler.prepare(self.setup)
            self._classes[request.priority] = scheduler, ClassView()
        return self._classes[request.priority]

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
            if not (yield from _offer_class(scheduler.select(part, now_s))):
                return

    def on_arrival(self, request: Request, view: WaitingView, now_s: float) -> None:
        scheduler, part = self._class_of(request)
        self._unfinished[request.priority] += 1
        part.running = view.running
        scheduler.on_arrival(request, part, now_s)
        part.enter(request)

    def on_retract(self, request: Request, view: WaitingView, now_s: float) -> None:
        scheduler, part = self._class_of(request)
        part.running = view.running
        scheduler.on_retract(request, part, now_s)
        part.enter(request)

    def requeue(self, request: Request, *, first: bool) -> None:
        """Move a request to the tail or head of its class's queue."""
        self.leave_class(request)
        part = self._class_of(request)[1]
        (part.enter_first if first else part.enter)(request)

    def leave_class(self, request: Request) -> None:
        if request in (part := self._class_of(request)[1]):
            part.leave(request)

    def _order_by_class(self, running: RunningView, now_s: float) -> Sequence[Request]:
        parts: defaultdict[int, list[Running]] = defaultdict(list)
        for one in running:
            parts[one.request.priority].append(one)
        order: list[Request] = []
        for number in sorted(parts, reverse=self._low_first):
            batch = ClassBatch(running, parts[number])
            order_victims = self._classes[number][0].retraction_order
            assert order_victims is not None
            order += order_victims(batch, now_s)
        return order

    def on_admitted(self, request: Request, extend_tokens: int, recompute: bool) -> None:
        scheduler, _ = self._class_of(request)
        self.leave_class(request)
        scheduler.on_admitted(request, extend_tokens, recompute)

    def on_tokens(self, client: str, tokens: int) -> None:
        """Do nothing, because ``on_request_tokens`` charges the client within its class."""

    def on_request_tokens(self, request: Request, tokens: int) -> None:
        scheduler, _ = self._class_of(request)
        scheduler.on_tokens(request.client, tokens)
        if (charge_tokens := scheduler.on_request_tokens) is not None:
            charge_tokens(request, tokens)

    def on_output(self, request: Request, tokens: int) -> None:
        self._class_of(request)[0].on_output(request, tokens)

    def on_finish(self, request: Request) -> None:
        scheduler, _ = self._class_of(request)
        self.leave_class(request)
        self._unfinished[request.priority] -= 1
        if not self._unfinished[request.priority]:
            del self._unfinished[request.priority]
        scheduler.on_finish(request)

    def forget(self, client: str) -> None:
        for scheduler, _ in self._classes.values():
            scheduler.forget(client)

    def balances(self) -> Mapping[str, float]:
        """Return the sum of each client's balances in all priority classes."""
        sums: defaultdict[str, float] = defaultdict(float)
        for scheduler, _ in self._classes.values():
            for client, balance in scheduler.balances().items():
                sums[client] += balance
        return sums

    def service_bound(self) -> ServiceBound | NoBound:
        return self._plain.service_bound()


def _offer_class(selection: Selection) -> Generator[Request | Preempt, bool, bool]:
    """Yield a priority class's candidates; return False if the engine did not admit the last."""
    admitted = True
    try:
        candidate = first_candidate(selection)
        while candidate is not None:
            admitted = yield candidate
            candidate = next_candidate(selection, admitted)
    finally:
        selection.close()
    return admitted


def unfit_for_classes(scheduler: LocalScheduler) -> str | None:
    """Return why a scheduler cannot run separately for each class, or None if it can do so."""
    for does, what in (
        (scheduler.preempts, "preempts"),
        (scheduler.on_gpu_time is not None, "charges measured time"),
        (type(scheduler).accepts is not LocalScheduler.accepts, "refuses requests"),
    ):
        if does:
            return f"{scheduler.name} {what}"
    return None
