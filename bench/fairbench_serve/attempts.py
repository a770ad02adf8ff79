"""Attempts: a request at one worker, and at a second one if the first failed before answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import ClientSession, web

from fairbench.core import Request
from fairbench.live import headers
from fairbench.live.json_errors import Problem
from fairbench.live.ledger import FIRST_TOKEN
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.request_tag import tagged
from fairbench.targets import Due
from fairbench_serve.breaker import Breakers, Doubts, Refusals
from fairbench_serve.calls import Api, Call
from fairbench_serve.charges import NOTHING, Asked, Bill, Charge, Pace, broken_off, reported
from fairbench_serve.client_limits import Slot
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.exchange import (
    ERROR,
    EVICTED,
    LEFT,
    LOST,
    OK,
    RETRIED,
    Exchange,
    How,
    WorkerFailed,
)
from fairbench_serve.health import Health, Progress
from fairbench_serve.ingress import ANYWHERE, Flight, Wish
from fairbench_serve.metrics import RouterMetrics
from fairbench_serve.traces import Trace


async def sent(dispatcher: Dispatcher, request: Request, wish: Wish = ANYWHERE) -> Flight:
    """Return the request's flight. Cancelling withdraws a request that is still queued.

    Raises the dispatcher's Problem, and WorkerFailed if its worker leaves at that moment.
    """
    went: list[Flight | Problem] = []
    told = asyncio.Event()

    def on_sent(flight: Flight | Problem) -> None:
        went.append(flight)
        told.set()

    flight = dispatcher.dispatch(request, on_sent, wish)
    if flight is not None:
        return flight
    try:
        await told.wait()
    except asyncio.CancelledError:  # the client has left
        for one in went:
            if isinstance(one, Flight):
                dispatcher.finish(one, 0, failed=True)
        dispatcher.over(request)
        raise
    result = went[0]
    if isinstance(result, Problem):
        raise result
    if not dispatcher.is_under_way(result):  # its worker has left before we received it
        dispatcher.finish(result, 0, failed=True)
        raise WorkerFailed(result.worker, How.UNREACHED)
    return result


log = logging.getLogger(__name__)

UNSEEN = (How.UNREACHED, How.STALE)  # the worker has not seen the request, or may not have seen it
FAILED = (How.BROKE, How.ANSWERED)  # the worker is up, but has failed the request
# Statuses that concern the worker's load, or the router's key for this worker.
OF_WORKERS = (401, 403, 407, 408, 425, 429)


@dataclass(frozen=True, slots=True)
class Asking:
    """A client's request with everything that is needed to send it to a worker.

    ``sent`` are the headers, ``asked`` the request's limits, ``bill`` its charges, ``trace`` its
    OpenTelemetry span.
    """

    http: web.Request
    api: Api
    call: Call
    request: Request
    slot: Slot
    asked: Asked
    sent: Mapping[str, str]
    bill: Bill
    trace: Trace

    @property
    def kind(self) -> int:
        """A hash of what a worker may be unable to serve: API, model, fields, the client's key."""
        fields = self.call.fields
        model = bytes(fields.get("model", b""))
        return hash((self.api.path, model, frozenset(fields), self.sent.get("Authorization")))

    @property
    def size(self) -> int:
        """The number of tokens that the request needs, as far as the client says."""
        return len(self.call.ids) + (self.call.max_new_tokens or 0)


@dataclass(slots=True)
class Tries:
    """A request's failed attempts so far, and the workers that refuse requests of its ``kind``.

    ``has_key`` means that the worker checks the client's own key.
    """

    kind: int
    size: int
    client: str
    refusers: Collection[int]
    has_key: bool
    failures: list[WorkerFailed] = field(default_factory=list)

    @property
    def stale(self) -> int | None:
        """The worker whose kept connection has just broken, which is asked on a new connection."""
        last = self.failures[-1]
        return last.worker if last.how is How.STALE else None

    def is_refusal(self, failure: WorkerFailed) -> bool:
        """Return whether a failure says only that the worker refuses this kind of request."""
        status = 0 if failure.answer is None else failure.answer.status
        of_worker = status in OF_WORKERS and not self.has_key
        return 400 <= status < 500 and not of_worker

    def given_up(self) -> web.Response:
        """Return the client's answer: the last refusal, which says what to change, or an error."""
        last = self.failures[-1]
        if last.how is How.ANSWERED:
            last = next(filter(self.is_refusal, reversed(self.failures)), last)
        if last.answer is not None:
            return last.answer
        said = "the worker of this request has failed"
        raise Problem(HTTPStatus.BAD_GATEWAY, said, worker=last.worker)


class Sessions(NamedTuple):
    """HTTP sessions: ``kept`` reuses connections; ``fresh`` makes a new one for each request."""

    kept: ClientSession
    fresh: ClientSession


@dataclass(eq=False)
class Attempts:
    """Sends a request to workers until one answers, and books the cost."""

    workers: Sequence[WorkerAddress]
    sessions: Sessions
    dispatcher: Dispatcher
    health: Health
    breakers: Breakers
    refusals: Refusals
    metrics: RouterMetrics
    progress: Progress
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self._doubts = Doubts()

    async def serve(self, asking: Asking) -> web.StreamResponse:
        """Return the answer of a worker. Raises Problem if no worker has answered.

        A request is retried if its worker never saw it: an unreachable worker (up to one attempt
        per worker), or a closed idle connection. Any other failure is retried once, and more often
        only if workers have answered with errors and another worker has not failed its last
        request. A request whose worker died is not retried.
        """
        probe = self.breakers.probe()
        try:
            return await self._tried(asking, probe)
        finally:
            if probe is not None:
                self.breakers.undecided(probe)
            self.dispatcher.over(asking.request, asking.bill.total)

    async def _tried(self, asking: Asking, probe: int | None) -> web.StreamResponse:
        kind, size, client = asking.kind, asking.size, asking.request.client
        refusers = self.refusals.avoided(kind, size, client)
        tries = Tries(kind, size, client, refusers, has_key="Authorization" in asking.sent)
        while True:
            wish = Wish(self._avoided(tries), tries.stale if tries.failures else probe)
            try:
                flight = await self._sent(asking, wish)
                return await self._attempt(asking, flight, tries)
            except WorkerFailed as failure:
                tries.failures.append(failure)
                if failure.how in FAILED:
                    is_refusal = tries.is_refusal(failure)
                    self._doubts.add(failure.worker, tries.kind if is_refusal else None)
                again = self._may_retry(tries)
                how = LOST if failure.how is How.DIED else RETRIED if again else ERROR
                self.metrics.totals.finished(asking.request.client, how, NOTHING)
                asking.trace.ended(failure.worker, how)
                if not again:
                    return tries.given_up()

    def _avoided(self, tries: Tries) -> Collection[int]:
        """Return workers that the next attempt avoids, as far as others are up."""
        failed = {one.worker for one in tries.failures if one.how is not How.STALE}
        refusing = failed.union(tries.refusers)
        doubted = refusing | self._doubted(tries) if failed else refusing
        return next((some for some in (doubted, refusing) if self.dispatcher.up - some), failed)

    def _doubted(self, tries: Tries) -> set[int]:
        return self._doubts.among(self.dispatcher.up, tries.kind)

    async def _sent(self, asking: Asking, wish: Wish) -> Flight:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        try:
            return await sent(self.dispatcher, asking.request, wish)
        finally:
            held_s = now_s() - begun_s
            self.metrics.totals.held(asking.request.client, held_s)
            asking.trace.held_s += held_s

    def _may_retry(self, tries: Tries) -> bool:
        failures = tries.failures
        last = failures[-1]
        if last.how is How.UNREACHED:
            return len(failures) <= len(self.dispatcher.flights)
        if last.how is How.STALE:
            return True
        others = self.dispatcher.up - {one.worker for one in failures}
        seen = [one.how for one in failures if one.how not in UNSEEN]
        if len(seen) > 1:
            is_cheap = all(how is How.ANSWERED for how in seen)
            return is_cheap and bool(others - self._doubted(tries))
        # A connection may break by itself, but an error would occur again.
        return last.how is How.BROKE or (last.how is not How.DIED and bool(others))

    def _judge(self, worker: int, tries: Tries) -> None:
        """Record that a worker served a request that others failed."""
        self._doubts.clear(worker, tries.kind)
        self.refusals.served(worker, tries.kind, tries.size)
        if self.breakers.served(worker, tries.client):
            log.warning("worker %d serves again", worker)
            self.dispatcher.join(worker)
        for failure in tries.failures:
            if failure.how in FAILED and failure.worker != worker:
                if tries.is_refusal(failure):
                    self._refuse(failure.worker, tries)
                else:
                    self._blame(failure.worker, tries.client)

    def _refuse(self, worker: int, tries: Tries) -> None:
        if self.refusals.refused(worker, tries.kind, tries.size, tries.client):
            log.warning(
                "worker %d refused requests that other workers served; requests of the same model "
                "and fields that need at least %d tokens avoid this worker for a while",
                *(worker, tries.size),
            )

    def _blame(self, worker: int, client: str) -> None:
        if not self.breakers.failed(worker, client):
            return
        if self.dispatcher.up <= {worker}:
            self.breakers.reset(worker)  # a failing worker is better than none
            return
        log.warning(
            "worker %d failed requests that other workers served; it gets no requests for a while",
            worker,
        )
        self.dispatcher.eject(worker)

    async def _attempt(self, asking: Asking, flight: Flight, tries: Tries) -> web.StreamResponse:
        """Send the request to one worker. Raises WorkerFailed once the worker's health is known."""

        def begun() -> None:
            asking.slot.begin()
            self.dispatcher.began(flight)
            self._judge(flight.worker, tries)

        heard = partial(self.progress.heard, flight.worker)
        exchange = Exchange(asking.http, asking.call, flight, begun, heard)
        worker = self.workers[flight.worker]
        key = self._routing_key(asking.request)
        asking.api.sign(asking.call, key)
        names = {headers.ROUTING_KEY: key, headers.SESSION: key}
        shown = {**asking.sent, **names, **worker.authorization}
        session = self.sessions.fresh if tries.failures else self.sessions.kept
        begun_s = asyncio.get_running_loop().time()
        try:
            answer = await exchange.run(session, worker.url + asking.api.path, shown)
        except WorkerFailed as failure:
            self.dispatcher.finish(flight, 0, failed=True)
            if failure.how in (How.UNREACHED, How.BROKE, How.STALE):
                healthy = await self._is_healthy(asking, flight.worker)
                if not healthy and failure.how is not How.UNREACHED:
                    failure.how = How.DIED
                elif tries.failures and failure.how is How.STALE:
                    failure.how = How.BROKE  # its connection was a new one
            raise
        except BaseException:
            elapsed_s = asyncio.get_running_loop().time() - begun_s
            self._settle(asking, flight, exchange, elapsed_s)
            raise
        self._settle(asking, flight, exchange, asyncio.get_running_loop().time() - begun_s)
        if exchange.outcome == OK and not asking.slot.begun:
            begun()
        if exchange.outcome == LOST:
            self.health.suspect(flight.worker)
        return answer

    async def _is_healthy(self, asking: Asking, worker: int) -> bool:
        """Return whether the failed worker is up, and count a client that leaves meanwhile."""
        try:
            return await self.health.check(worker)
        except BaseException:
            outcome = EVICTED if asking.slot.evicted else LEFT
            self.metrics.totals.finished(asking.request.client, outcome, NOTHING)
            asking.trace.ended(worker, outcome)
            raise

    def _routing_key(self, request: Request) -> str:
        due = Due(request.first_token_by_s, request.deadline_s, request.token_every_s)
        return tagged(request.client, due, self.dispatcher.now_s())

    def _settle(self, asking: Asking, flight: Flight, exchange: Exchange, elapsed_s: float) -> None:
        """Book the cost of the exchange, and tell the router."""
        outcome = EVICTED if asking.slot.evicted else exchange.outcome
        charge = self._charge(asking, flight.worker, exchange, elapsed_s)
        if outcome == OK:
            self.pace.observe(flight.worker, elapsed_s, charge.output_tokens)
        asking.bill.add(charge)
        self.dispatcher.finish(flight, charge.output_tokens)
        self.metrics.totals.finished(asking.request.client, outcome, charge)
        if flight.first_token_s is not None:  # an answer in one piece has no known first token
            waited_s = flight.first_token_s - asking.request.arrival_s
            self.metrics.totals.waited(FIRST_TOKEN, asking.request.client, waited_s)
        asking.trace.ended(flight.worker, outcome, charge)

    def _charge(self, asking: Asking, worker: int, exchange: Exchange, elapsed_s: float) -> Charge:
        usage = exchange.usage
        if exchange.outcome in (LEFT, LOST):
            token_s = None if asking.call.stream else self.pace.token_s(worker)
            left = exchange.outcome == LEFT and not (asking.slot.evicted or exchange.is_finished)
            return broken_off(usage, asking.asked, elapsed_s, token_s, left=left)
        if exchange.outcome == ERROR and usage.output_tokens is None:
            return NOTHING
        return reported(usage, asking.asked)
