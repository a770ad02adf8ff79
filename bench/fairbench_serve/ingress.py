"""The router's queue of requests that wait for a worker, and the state of sent requests.

This module uses no sockets and no asyncio tasks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from math import ceil
from typing import NamedTuple, Protocol, TypeAlias

from fairbench.core import Prompt, Request
from fairbench.schedulers.gateway.queue import HoldsRequests, QueueHost
from fairbench.schedulers.views import Read
from fairbench_load.http_server import Problem, too_many, unavailable
from fairbench_load.token_pages import segments_of
from fairbench_serve.answers import Charge


class AttemptFailure(Enum):
    """The reason why an attempt to serve a request at a worker failed."""

    # No connection was opened, so the worker has not received the request.
    UNREACHED = auto()
    # The connection ended before the answer began, for example because it was idle for too long.
    STALE = auto()
    BROKE = auto()  # the connection ended during the answer, or the answer was invalid
    ANSWERED = auto()  # the worker answered with an error, or with an empty answer
    HUNG = auto()  # the worker's process runs but does not answer
    DIED = auto()  # the worker's process has ended
    CUT = auto()  # the worker failed after the client had received a part of the answer
    LEFT = auto()  # the client has disconnected
    EVICTED = auto()  # the request's slot went to another client


# outcomes of attempts to serve a request, in metrics and traces
OUTCOMES = OK, ERROR, LEFT, EVICTED, LOST, RETRIED = (
    *("ok", "error", "left"),
    *("evicted", "lost", "retried"),
)
_REPORTED = {
    None: OK,
    AttemptFailure.LEFT: LEFT,
    AttemptFailure.EVICTED: EVICTED,
    AttemptFailure.DIED: LOST,
    AttemptFailure.CUT: LOST,
}


def outcome_of(failure: AttemptFailure | None, *, retried: bool = False) -> str:
    """Return the outcome of an attempt; ``retried`` means that another attempt follows."""
    return _REPORTED.get(failure, RETRIED if retried else ERROR)


@dataclass(slots=True, eq=False)
class RequestInFlight:
    """The state of a request at a worker, from its dispatch until ``Dispatcher.finish``.

    - ``worker`` is the worker to which the request was sent; ``routed`` is the worker that the
      routing policy had chosen.
    - ``first_token_s`` is the time in seconds at which the answer began to stream.
      ``output_tokens`` is the number of tokens that have streamed so far.
    - ``on_lost`` is called once, with the reason, if the worker becomes unavailable before the
      request has ended.
    - ``paused`` is True while the router waits for a client that reads too slowly.
    """

    request: Request
    worker: int
    routed: int
    on_lost: Callable[[AttemptFailure], None] = lambda reason: None
    first_token_s: float | None = None
    output_tokens: int = 0
    paused: bool = False


class Wish(NamedTuple):
    """The workers that a request should avoid, or the worker that a test request must use."""

    avoid: Collection[int] = ()
    probe: int | None = None


ANYWHERE = Wish()
OnSent: TypeAlias = Callable[[RequestInFlight | Problem], None]


def pages_of(ids: array[int], page_tokens: int) -> Prompt:
    """Return a prompt for routing policies, without its incomplete last page.

    KV events do not report incomplete pages, and only an identical prompt could reuse an incomplete
    page.
    """
    whole = ids[: len(ids) - len(ids) % page_tokens]
    whole.append(0)
    # Omit the last segment, because it contains only the additional token 0.
    return segments_of(whole)[:-1]


# minimum number of seconds until a timer fires; rounding errors could otherwise cause a busy loop
SHORTEST_NAP_S = 0.001


class Ringing(Protocol):
    """A started timer that can be cancelled."""

    def cancel(self) -> None:
        """Cancel the timer."""


Alarm: TypeAlias = Callable[[float, Callable[[], None]], Ringing]
"""A function that starts a timer, given the seconds and the function that the timer calls."""


class RouterIngress(QueueHost[tuple[OnSent, Wish]]):
    """The requests that wait in the router's queue, and the unfinished requests at workers.

    - ``send`` sends a request from the queue to a worker.
    - ``is_open`` returns whether any worker is available.
    - ``alarm`` starts timers for the queue; None means no timers.
    - ``blocked`` returns the reason why no queued request can be sent at present, or None. If
      ``blocked`` returns a reason, all queued requests are refused.
    """

    def __init__(
        self,
        queue: HoldsRequests,
        send: Callable[[Request, int, Wish], RequestInFlight],
        now_s: Callable[[], float],
        is_open: Callable[[], bool],
        alarm: Alarm | None = None,
    ) -> None:
        super().__init__(queue)
        self._send = send
        self._now_s = now_s
        self._is_open = is_open
        self._alarm = alarm
        self.blocked: Callable[[], str | None] = lambda: None
        self._ringing: Ringing | None = None

    def __len__(self) -> int:
        return len(self.held)

    def __iter__(self) -> Iterator[Request]:
        return iter(self.held)

    def __contains__(self, request: object) -> bool:
        """Return whether the request waits in the queue."""
        return request in self.held

    def held_by_client(self) -> Counter[str]:
        return Counter(request.client for request in self.held)

    def enter(self, request: Request, on_sent: OnSent, wish: Wish) -> RequestInFlight | None:
        """Put a request into the queue, and send it at once if possible.

        Returns the state of a request that is sent at once. If the request is queued, returns None,
        and ``on_sent`` later gets the state or a Problem. Raises Problem with HTTP status 429 if
        the queue refuses the request, or another Problem if the request cannot be sent.
        """
        sent: list[RequestInFlight | Problem] = []
        self.held[request] = sent.append, wish
        if not self.queue.enter(request, self._now_s()):
            del self.held[request]
            raise self._queue_refusal()
        self.release()
        if not sent:
            self.held[request] = on_sent, wish
            return None
        if isinstance(sent[0], Problem):
            raise sent[0]
        return sent[0]

    def _queue_refusal(self) -> Problem:
        late_s = self.queue.retry_after_s()
        if late_s is None:
            return too_many("the queue is full for this client; try again later")
        why = (
            f"the request would miss its deadline by about {late_s:.1f} s, because the "
            "workers are too busy"
        )
        return too_many(why, max(1, ceil(late_s)))

    def moved(self, request: Request, worker: int | None) -> None:
        """Record that a request is now at ``worker``, or at no worker if ``worker`` is None."""
        if self.is_sent(request):
            self.queue.moved(request, worker)

    def close_request(self, request: Request, charge: Charge) -> None:
        """Record that a request has ended and charge its client; later calls have no effect."""
        if request in self.held:
            del self.held[request]
            self.queue.withdraw(request)
        elif self.end_sent(request):
            read = Read(charge.input_tokens, charge.cached_tokens)
            self.queue.finish(request, charge.output_tokens, self._now_s(), read)

    def release(self) -> None:
        """Refuse requests that have waited too long, and send requests that may be sent now."""
        now_s, is_open = self._now_s(), self._is_open()
        ends: list[tuple[Request, RequestInFlight | Problem]] = []

        def refuse(request: Request) -> None:
            ends.append((request, _given_up(is_open)))

        def send(request: Request, routed: int) -> None:
            try:
                flight: RequestInFlight | Problem = self._send(
                    request, routed, self.held[request][1]
                )
            except Problem as problem:
                flight = problem
            ends.append((request, flight))

        if is_open:
            self.release_queue(now_s, send, refuse)
        self.shed_queue(now_s, refuse)
        for request, end in ends:
            on_sent, _ = self.held.pop(request)
            on_sent(end)
        if self.held and (why := self.blocked()) is not None:
            held, self.held = self.held, {}
            for request, (on_sent, _) in held.items():
                self.queue.withdraw(request)
                on_sent(unavailable(why))
        self._set_alarm(now_s)

    def _set_alarm(self, now_s: float) -> None:
        if self._ringing is not None:
            self._ringing.cancel()
            self._ringing = None
        wake_s = self.queue.wake_s(now_s) if self._alarm and self.held else None
        if self._alarm is not None and wake_s is not None:
            self._ringing = self._alarm(max(wake_s - now_s, SHORTEST_NAP_S), self.release)


def _given_up(is_open: bool) -> Problem:
    if is_open:
        return too_many(
            "the request waited too long in the queue, or was displaced by others; try again later"
        )
    return unavailable("no worker became available within the time that the request may wait")
