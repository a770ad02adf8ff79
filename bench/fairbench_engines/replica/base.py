"""The base class of simulated replicas in which an engine's own code schedules requests.

The class implements ``fairbench.engine.contract.Replica`` with the simulator's clock, frontend and
records.
"""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from fairbench.core import Prompt, Request, Segment
from fairbench.engine.clock import DECIDE, END
from fairbench.engine.contract import WorkerParts
from fairbench.engine.logs import InBatch, Stretch
from fairbench.engine.loop import FrontendQueue
from fairbench.engine.sequence import FINISHED, NEVER, REFUSED, Sequence
from fairbench.hardware.gpu_time import Decoding
from fairbench.hardware.timing import ProfileCosts

Req = Any  # a request in the engine's own form: a request object or a number


def prompt_of(pairs: Iterable[Iterable[Any]]) -> Prompt:
    """Return a prompt whose segments have the given (key, length) pairs."""
    return tuple(Segment(*pair) for pair in pairs)


class RealReplica(ABC):
    """A simulated replica that runs the real scheduler of an engine."""

    def __init__(self, parts: WorkerParts, limits: Any) -> None:
        self.index, self.clock, self.log = parts.index, parts.clock, parts.log
        self.profile, self.limits, self.scheduler = parts.profile, limits, parts.scheduler
        self.costs = ProfileCosts(parts.profile)
        self.frontend = FrontendQueue(
            parts.clock, parts.profile.frontend, parts.index, self._arrive
        )
        self.on_pass: Callable[[], None] | None = None
        self.engine: Any = None
        # ``batch`` lists no requests, because ``settle`` updates the requests' output counts.
        self.batch: Any = types.SimpleNamespace(sequences=())
        self._tell_evicted = parts.on_evict
        self._inbox: list[Sequence] = []
        # unfinished requests, keyed by the engine's request name or request object
        self._sequences: dict[Req, Sequence] = {}
        self._per_client: dict[str, int] = {}  # number of each client's decoding requests
        self._stretch: Stretch | None = None
        # each client's numbers of decoding requests and of context tokens, at the start of the
        # current series of decode steps with the same batch
        self._first: dict[str, Decoding] = {}
        self._idle = True

    @abstractmethod
    def fits(self, request: Request) -> bool:
        """Return whether the request could run on this worker if no other request ran."""

    @abstractmethod
    def _take_in(self, sequence: Sequence) -> None:
        """Pass an arriving request to the engine."""

    @abstractmethod
    def _waiting_count(self) -> int:
        """Return the number of requests that wait in the engine."""

    @abstractmethod
    def _produced(self, request: Req) -> int:
        """Return the number of output tokens that the engine has produced for the request."""

    @abstractmethod
    def _start(self) -> bool:
        """Begin the engine's next iteration; return False if the engine has nothing to run."""

    @property
    def queued_count(self) -> int:
        return len(self.frontend) + len(self._inbox) + self._waiting_count()

    @property
    def saturated(self) -> bool:
        return self._waiting_count() > 0 and self.running_count > 0

    @property
    def room(self) -> None:
        """The free memory, always None, because the engine does not report it."""

    @property
    def running_count(self) -> int:
        return len(self._sequences) - self._waiting_count()

    def submit(self, sequence: Sequence) -> None:
        sequence.worker = self.index
        self.frontend.enter(sequence)

    def _arrive(self, sequence: Sequence) -> None:
        if not self.fits(sequence.request):
            sequence.status = REFUSED
            sequence.on_done(sequence)
            return
        self._inbox.append(sequence)
        if self._idle:
            self._idle = False
            self.clock.at(self.clock.now_ps, DECIDE, self.index, self._decide)

    def sync(self) -> None:
        """Do nothing, because the log has every step as soon as the step ends."""

    def settle(self) -> None:
        self._end_stretch()
        for request, sequence in self._sequences.items():
            sequence.produced = self._produced(request)

    def in_flight(self) -> list[Sequence]:
        return [*self._sequences.values(), *self._inbox, *self.frontend]

    # Like a real engine, the replica considers arriving requests before its next iteration.

    def _decide(self) -> None:
        inbox, self._inbox = self._inbox, []
        for sequence in inbox:
            self._take_in(sequence)
        self._idle = not self._start()
        if self.on_pass is not None:
            self.on_pass()

    def _await_end(self, duration_ps: int, complete: Callable[[], list[Req]]) -> None:
        """End the iteration after ``duration_ps``, with the finished requests from ``complete``."""

        def end() -> None:
            self._finish(complete())
            self.clock.soon(DECIDE, self.index, self._decide)

        self.clock.at(self.clock.now_ps + duration_ps, END, self.index, end)

    def _finish(self, finished: list[Req]) -> None:
        if finished:
            self._end_stretch()
        done = [self._sequences.pop(request) for request in finished]
        for request, sequence in zip(finished, done, strict=True):
            self._leave(sequence)
            sequence.produced = self._produced(request)
            sequence.finish_ps = max(self.clock.now_ps, sequence.first_token_ps)
            sequence.status = FINISHED
            self._over(sequence)
        for sequence in done:
            sequence.on_done(sequence)

    def _over(self, sequence: Sequence) -> None:
        """Do nothing; a subclass may act on each finished request."""

    def _join(self, sequence: Sequence) -> None:
        """Record that a request's prefill has ended, so that the request has its first token."""
        if sequence.first_token_ps == NEVER:
            sequence.first_token_ps = self.frontend.out_ps(self.clock.now_ps)
        client = sequence.request.client
        self._per_client[client] = self._per_client.get(client, 0) + 1

    def _leave(self, sequence: Sequence) -> None:
        client = sequence.request.client
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]

    def _decoding(self, contexts: Iterable[tuple[Req, int]]) -> dict[str, Decoding]:
        sums: dict[str, Decoding] = {}
        for request, tokens in contexts:
            client = self._sequences[request].request.client
            number, before = sums.get(client, Decoding(0, 0))
            sums[client] = Decoding(number + 1, before + tokens)
        return {client: sums[client] for client in self._per_client}

    def _await_decode(
        self, contexts: Iterable[tuple[Req, int]], complete: Callable[[], list[Req]]
    ) -> None:
        """Run a decode step of all running requests, and call ``complete`` at its end.

        ``contexts`` holds each decoding request with its context in tokens.
        """
        contexts = list(contexts)
        if self._stretch is None:
            self._open_stretch(contexts)
        context = sum(tokens for _, tokens in contexts)
        took_ps = self.profile.decode_ps(len(contexts), context) + self._tail_ps(contexts)
        self._await_end(took_ps, lambda: self._book_step(complete))

    def _open_stretch(self, contexts: Iterable[tuple[Req, int]]) -> None:
        """Begin a stretch: consecutive decode steps with the same batch of requests."""
        first = self._decoding(contexts)
        size, context = map(sum, zip(*first.values(), strict=True))
        assert size == sum(self._per_client.values())
        growth_ps, fixed_ps = self.profile.context_ps * size, self.profile.decode_ps(size, 0)
        self._stretch = Stretch(self.clock.now_ps, growth_ps, context, fixed_ps)
        self._first = first

    def _book_step(self, complete: Callable[[], list[Req]]) -> list[Req]:
        finished = complete()
        assert self._stretch is not None
        self._stretch.steps += 1
        self._stretch.end_ps = self.clock.now_ps
        return finished

    def _tail_ps(self, contexts: Iterable[tuple[Req, int]]) -> int:
        """Return the attention time (ps) that the timing profile's formula leaves out."""
        return 0

    def _end_stretch(self) -> None:
        if self._stretch is not None and self._stretch.steps:
            batch = InBatch(self.log.index)
            for client, (requests, context) in self._first.items():
                for tokens in (context, *[0] * (requests - 1)):
                    batch.add(client, tokens)
            self.log.decode(self.index, self._stretch, batch)
        self._stretch = None
