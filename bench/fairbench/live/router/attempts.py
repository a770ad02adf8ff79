"""Attempts: a request at one worker, and at a second one if the first failed before answering."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import ClientSession, web

from fairbench.core import Request
from fairbench.live import headers
from fairbench.live.json_errors import Problem
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.request_tag import tagged
from fairbench.live.router.breaker import Breakers
from fairbench.live.router.calls import Api, Call
from fairbench.live.router.charges import NOTHING, Asked, Bill, Charge, Pace, broken_off, reported
from fairbench.live.router.client_limits import Slot
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.exchange import (
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
from fairbench.live.router.health import Health, Progress
from fairbench.live.router.ingress import ANYWHERE, Flight, Wish
from fairbench.live.router.metrics import RouterMetrics
from fairbench.live.router.traces import Trace
from fairbench.targets import Due


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


class Sessions(NamedTuple):
    """HTTP sessions: ``kept`` reuses connections; ``fresh`` makes a new one for each request."""

    kept: ClientSession
    fresh: ClientSession


@dataclass(eq=False)
class Attempts:
    """Sends a request to workers until one answers, at most two, and books the cost."""

    workers: Sequence[WorkerAddress]
    sessions: Sessions
    dispatcher: Dispatcher
    health: Health
    breakers: Breakers
    metrics: RouterMetrics
    progress: Progress
    pace: Pace = field(default_factory=Pace)

    async def serve(self, asking: Asking) -> web.StreamResponse:
        """Return the answer of a worker. Raises Problem if no worker has answered.

        A request is retried if its worker never saw it: an unreachable worker (up to one attempt
        per worker), or a closed idle connection. Any other failure is retried at most once. A
        request whose worker died is not retried. A worker's error answer is retried only if another
        worker is up.
        """
        probe = self.breakers.probe()
        try:
            return await self._tried(asking, probe)
        finally:
            if probe is not None:
                self.breakers.undecided(probe)
            self.dispatcher.over(asking.request, asking.bill.total)

    async def _tried(self, asking: Asking, probe: int | None) -> web.StreamResponse:
        failures: list[WorkerFailed] = []
        while True:
            failed = [failure.worker for failure in failures if failure.how is not How.STALE]
            wish = Wish(failed, None if failures else probe)
            try:
                flight = await self._sent(asking, wish)
                return await self._attempt(asking, flight, failures)
            except WorkerFailed as failure:
                failures.append(failure)
                again = self._may_retry(failures)
                how = LOST if failure.how is How.DIED else RETRIED if again else ERROR
                self.metrics.totals.finished(asking.request.client, how, NOTHING)
                asking.trace.ended(failure.worker, how)
                if not again:
                    return _given_up(failure)

    async def _sent(self, asking: Asking, wish: Wish) -> Flight:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        try:
            return await sent(self.dispatcher, asking.request, wish)
        finally:
            held_s = now_s() - begun_s
            self.metrics.totals.held(asking.request.client, held_s)
            asking.trace.held_s += held_s

    def _may_retry(self, failures: Sequence[WorkerFailed]) -> bool:
        last = failures[-1]
        if last.how is How.UNREACHED:
            return len(failures) <= len(self.dispatcher.flights)
        if last.how is How.STALE:
            return True
        if last.how is How.DIED or sum(one.how not in UNSEEN for one in failures) > 1:
            return False
        # A connection may break by itself, but an error would occur again.
        return last.how is How.BROKE or bool(self.dispatcher.up - {last.worker})

    def _judge(self, worker: int, failures: Sequence[WorkerFailed]) -> None:
        """Record that a worker served a request that others failed."""
        if self.breakers.served(worker):
            log.warning("worker %d serves again", worker)
            self.dispatcher.join(worker)
        for failure in failures:
            if failure.how in (How.BROKE, How.ANSWERED) and failure.worker != worker:
                self._blame(failure.worker)

    def _blame(self, worker: int) -> None:
        if not self.breakers.failed(worker):
            return
        if self.dispatcher.up <= {worker}:
            self.breakers.reset(worker)  # a failing worker is better than none
            return
        log.warning(
            "worker %d failed requests that other workers served; it gets no requests for a while",
            worker,
        )
        self.dispatcher.eject(worker)

    async def _attempt(
        self, asking: Asking, flight: Flight, failures: Sequence[WorkerFailed]
    ) -> web.StreamResponse:
        """Send the request to one worker. Raises WorkerFailed once the worker's health is known."""

        def begun() -> None:
            asking.slot.begin()
            self.dispatcher.began(flight)
            self._judge(flight.worker, failures)

        heard = partial(self.progress.heard, flight.worker)
        exchange = Exchange(asking.http, asking.call, flight, begun, heard)
        worker = self.workers[flight.worker]
        key = self._routing_key(asking.request)
        asking.api.sign(asking.call, key)
        names = {headers.ROUTING_KEY: key, headers.SESSION: key}
        shown = {**asking.sent, **names, **worker.authorization}
        session = self.sessions.fresh if failures else self.sessions.kept
        begun_s = asyncio.get_running_loop().time()
        try:
            answer = await exchange.run(session, worker.url + asking.api.path, shown)
        except WorkerFailed as failure:
            self.dispatcher.finish(flight, 0, failed=True)
            if failure.how in (How.UNREACHED, How.BROKE, How.STALE):
                healthy = await self._is_healthy(asking, flight.worker)
                if not healthy and failure.how is not How.UNREACHED:
                    failure.how = How.DIED
                elif failures and failure.how is How.STALE:
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


def _given_up(failure: WorkerFailed) -> web.Response:
    if failure.answer is not None:
        return failure.answer
    raise Problem(
        HTTPStatus.BAD_GATEWAY, "the worker of this request has failed", worker=failure.worker
    )
