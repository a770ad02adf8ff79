"""The queue before the workers in the router's process, and a request's flight at one of them.

Like the dispatcher, it has no sockets and no tasks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Protocol, TypeAlias

from fairbench.core import Prompt, Request
from fairbench.live.json_errors import Problem, too_many, unavailable
from fairbench.schedulers.gateway.queue import HoldsRequests
from fairbench.schedulers.token_pages import segments_of
from fairbench.schedulers.views import Read
from fairbench_serve.charges import Charge


@dataclass(slots=True, eq=False)
class Flight:
    """A request at a worker, until ``Dispatcher.finish``.

    ``routed`` is the worker where the router believes the request to be. ``first_token_s`` is the
    time at which its answer began to stream. ``on_lost`` is called once if the worker leaves
    meanwhile; ``died`` is then true if its process ended, or if it reported so. ``paused`` is true
    while the client reads too slowly, so that nothing is read from the worker.
    """

    request: Request
    worker: int
    routed: int
    on_lost: Callable[[], None] = lambda: None
    died: bool = False
    first_token_s: float | None = None
    paused: bool = False


class Wish(NamedTuple):
    """Workers to avoid, or the only target of a probe, even if out of rotation."""

    avoid: Collection[int] = ()
    probe: int | None = None


ANYWHERE = Wish()
OnSent: TypeAlias = Callable[[Flight | Problem], None]


def pages_of(ids: array[int], page_tokens: int) -> Prompt:
    """Return a prompt as routers see it, without its last, incomplete page.

    The incomplete page could only match an identical ending, and no KV event would ever report it.
    """
    whole = ids[: len(ids) - len(ids) % page_tokens]
    whole.append(0)
    return segments_of(whole)[:-1]  # so that the page left out is always the last one


# seconds between two alarms, so that rounding of times cannot keep the loop busy
SHORTEST_NAP_S = 0.001


class Ringing(Protocol):
    """An alarm that is set."""

    def cancel(self) -> None:
        """Cancel the timer."""


Alarm: TypeAlias = Callable[[float, Callable[[], None]], Ringing]
"""A function that calls another after the given seconds."""


@dataclass(eq=False)
class Ingress:
    """Requests that wait in the ``queue`` until it releases them, and released ones.

    ``send`` creates the flight of a released request; ``is_open`` returns whether any worker is up;
    ``alarm`` wakes the queue at the times that it asks for, and is None for a queue that needs
    none. ``blocked`` returns why the queue will not release any request, or None: such requests do
    not wait.
    """

    queue: HoldsRequests
    send: Callable[[Request, int, Wish], Flight]
    now_s: Callable[[], float]
    is_open: Callable[[], bool]
    alarm: Alarm | None = None
    blocked: Callable[[], str | None] = lambda: None

    def __post_init__(self) -> None:
        self._ringing: Ringing | None = None
        self._held: dict[Request, tuple[OnSent, Wish]] = {}
        self._gone: set[Request] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._held)

    def __contains__(self, request: object) -> bool:
        """Return whether the request is queued."""
        return request in self._held

    def held(self) -> Counter[str]:
        return Counter(request.client for request in self._held)

    def let_go(self, request: Request) -> bool:
        """Return whether a released request is unfinished: it has waited and was charged."""
        return request in self._gone

    def enter(self, request: Request, on_sent: OnSent, wish: Wish) -> Flight | None:
        """Add a request. If it is queued, return None; ``on_sent`` is called when it is sent.

        Raises Problem: 429 if the queue refuses the request, and any problem of sending it.
        """
        sent: list[Flight | Problem] = []
        self._held[request] = sent.append, wish
        if not self.queue.enter(request, self.now_s()):
            del self._held[request]
            raise self._refused()
        self.release()
        if not sent:
            self._held[request] = on_sent, wish
            return None
        if isinstance(sent[0], Problem):
            raise sent[0]
        return sent[0]

    def _refused(self) -> Problem:
        late_s = self.queue.retry_after_s()
        if late_s is None:
            return too_many("the queue is full for this client; try again later")
        why = (
            f"the request would miss its deadline by about {late_s:.1f} s, because the "
            "workers are too busy"
        )
        return too_many(why, max(1, ceil(late_s)))

    def moved(self, request: Request, worker: int | None) -> None:
        """Record the request's worker; None if a new attempt follows or the worker is down."""
        if request in self._gone:
            self.queue.moved(request, worker)

    def over(self, request: Request, charge: Charge) -> None:
        """Record a request's end, in any state, and its charge. A second call has no effect."""
        if request in self._held:
            del self._held[request]
            self.queue.withdraw(request)
        elif request in self._gone:
            self._gone.remove(request)
            read = Read(charge.input_tokens, charge.cached_tokens)
            self.queue.finish(request, charge.output_tokens, self.now_s(), read)

    def release(self) -> None:
        """Refuse requests that have waited too long, and send those that may go now."""
        now_s, is_open = self.now_s(), self.is_open()
        ends: list[tuple[Request, Flight | Problem]] = [
            (request, _given_up(is_open)) for request in self.queue.shed(now_s)
        ]

        def send(request: Request, routed: int) -> None:
            self._gone.add(request)
            try:
                flight: Flight | Problem = self.send(request, routed, self._held[request][1])
            except Problem as problem:
                flight = problem
            ends.append((request, flight))

        if is_open:
            self.queue.release(now_s, send)
            ends += [(request, _given_up(is_open)) for request in self.queue.shed(now_s)]
        for request, end in ends:
            on_sent, _ = self._held.pop(request)
            on_sent(end)
        if self._held and (why := self.blocked()) is not None:
            self._refuse_all(unavailable(why))
        self._set_alarm(now_s)

    def _refuse_all(self, problem: Problem) -> None:
        held, self._held = self._held, {}
        for request, (on_sent, _) in held.items():
            self.queue.withdraw(request)
            on_sent(problem)

    def _set_alarm(self, now_s: float) -> None:
        if self._ringing is not None:
            self._ringing.cancel()
            self._ringing = None
        wake_s = self.queue.wake_s(now_s) if self.alarm and self._held else None
        if self.alarm is not None and wake_s is not None:
            self._ringing = self.alarm(max(wake_s - now_s, SHORTEST_NAP_S), self.release)


def _given_up(is_open: bool) -> Problem:
    if is_open:
        return too_many(
            "the request waited too long in the queue, or was displaced by others; try again later"
        )
    return unavailable("no worker became available within the time that the request may wait")
