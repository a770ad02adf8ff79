"""Attempts to serve a request at a worker and, after failures, at other workers."""

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
from fairbench_load import headers
from fairbench_load.client_metrics import FIRST_TOKEN
from fairbench_load.headers import tagged_client
from fairbench_load.http_server import Problem
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.answers import NOTHING, Bill, Charge, HighestCost, Pace, broken_off, reported
from fairbench_serve.breaker import Breakers, Doubts, Refusals
from fairbench_serve.calls import Api, Call
from fairbench_serve.client_limits import Slot
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.exchange import Exchange, WorkerFailed
from fairbench_serve.health import Health, WorkerWatch
from fairbench_serve.ingress import ANYWHERE, AttemptFailure, RequestInFlight, Wish, outcome_of
from fairbench_serve.metrics import RouterMetrics
from fairbench_serve.spans import RequestTrace


async def wait_until_sent(
    dispatcher: Dispatcher, request: Request, wish: Wish = ANYWHERE
) -> RequestInFlight:
    """Wait until the request is sent to a worker, and return the request in flight.

    If the task is cancelled, the queued request is withdrawn. Raises Problem if the dispatcher
    refuses the request, and WorkerFailed if the worker becomes unavailable just when the request is
    sent.
    """
    went: list[RequestInFlight | Problem] = []
    told = asyncio.Event()

    def on_sent(flight: RequestInFlight | Problem) -> None:
        went.append(flight)
        told.set()

    flight = dispatcher.dispatch(request, on_sent, wish)
    if flight is not None:
        return flight
    try:
        await told.wait()
    except asyncio.CancelledError:  # the client has disconnected
        for one in went:
            if isinstance(one, RequestInFlight):
                dispatcher.finish(one, 0, failed=True)
        dispatcher.close_request(request)
        raise
    result = went[0]
    if isinstance(result, Problem):
        raise result
    # The request is no longer in flight if its worker became unavailable before this task resumed.
    if not dispatcher.is_under_way(result):
        dispatcher.finish(result, 0, failed=True)
        raise WorkerFailed(result.worker, AttemptFailure.UNREACHED)
    return result


log = logging.getLogger(__name__)

# failures that can occur before the worker receives the request
UNSEEN = (AttemptFailure.UNREACHED, AttemptFailure.STALE)
# failures of a worker that received the request but did not serve it
FAILED = (AttemptFailure.BROKE, AttemptFailure.ANSWERED)
# failures of a connection; a health check then finds out whether the worker still runs
DISCONNECTED = (AttemptFailure.UNREACHED, AttemptFailure.STALE, AttemptFailure.BROKE)
# HTTP statuses that concern the worker's load or the router's API key rather than the request
OF_WORKERS = (401, 403, 407, 408, 425, 429)


@dataclass(frozen=True, slots=True)
class Asking:
    """A client's request, with all data needed to send it to a worker.

    ``sent`` holds the headers that the worker receives. ``asked`` is the maximum cost of the
    request, and ``bill`` holds the charges so far. ``trace`` holds the data of the request's span.
    """

    http: web.Request
    api: Api
    call: Call
    request: Request
    slot: Slot
    asked: HighestCost
    sent: Mapping[str, str]
    bill: Bill
    trace: RequestTrace

    @property
    def kind(self) -> int:
        """A hash of API path, model, fields and API key, which identifies a kind of request."""
        fields = self.call.fields
        model = bytes(fields.get("model", b""))
        return hash((self.api.path, model, frozenset(fields), self.sent.get("Authorization")))

    @property
    def size(self) -> int:
        """The number of prompt tokens plus, if the request limits its output, the output limit."""
        return len(self.call.ids) + (self.call.max_new_tokens or 0)


@dataclass(slots=True)
class Tries:
    """The failed attempts of a request.

    ``refusers`` are the workers that refuse requests with the hash ``kind``. ``has_key`` is True if
    the worker receives the client's own API key.
    """

    kind: int
    size: int
    client: str
    refusers: Collection[int]
    has_key: bool
    failures: list[WorkerFailed] = field(default_factory=list)

    @property
    def stale(self) -> int | None:
        """The worker that closed a reused connection in the last attempt, or None."""
        last = self.failures[-1]
        return last.worker if last.reason is AttemptFailure.STALE else None

    def is_refusal(self, failure: WorkerFailed) -> bool:
        """Return whether the request, not the worker, caused the failure (most 4xx statuses)."""
        status = 0 if failure.answer is None else failure.answer.status
        of_worker = status in OF_WORKERS and not self.has_key
        return 400 <= status < 500 and not of_worker

    def given_up(self) -> web.Response:
        """Return the response after the last attempt: the last refusal or error response."""
        last = self.failures[-1]
        if last.reason is AttemptFailure.ANSWERED:
            last = next(filter(self.is_refusal, reversed(self.failures)), last)
        if last.answer is not None:
            return last.answer
        said = "the worker of this request has failed"
        raise Problem(HTTPStatus.BAD_GATEWAY, said, worker=last.worker)


class Sessions(NamedTuple):
    """HTTP sessions: ``kept`` reuses connections, ``fresh`` opens a connection for each request."""

    kept: ClientSession
    fresh: ClientSession


@dataclass(eq=False)
class Attempts:
    """A sender that tries workers until one answers, and records each request's cost."""

    workers: Sequence[WorkerAddress]
    sessions: Sessions
    dispatcher: Dispatcher
    health: Health
    breakers: Breakers
    refusals: Refusals
    metrics: RouterMetrics
    progress: WorkerWatch
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self._doubts = Doubts()

    async def answer_request(self, asking: Asking) -> web.StreamResponse:
        """Return the answer that a worker gives to a request.

        The request is sent again if a worker has closed a reused connection. If a worker cannot be
        reached, the request is sent again at most once per worker. After any other failure, the
        request is retried once, at another worker or, if the connection broke, at any worker.
        Further retries take place only if all failures were error answers, and if there is another
        worker whose last request succeeded. If the worker's process has ended, the request is not
        retried.

        Raises Problem if no worker has answered.
        """
        probe = self.breakers.probe()
        try:
            return await self._tried(asking, probe)
        finally:
            if probe is not None:
                self.breakers.undecided(probe)
            self.dispatcher.close_request(asking.request, asking.bill.total)

    async def _tried(self, asking: Asking, probe: int | None) -> web.StreamResponse:
        kind, size, client = asking.kind, asking.size, asking.request.client
        refusers = self.refusals.avoided(kind, size, client)
        tries = Tries(kind, size, client, refusers, has_key="Authorization" in asking.sent)
        while True:
            wish = Wish(self._avoided(tries), tries.stale if tries.failures else probe)
            try:
                flight = await self._flight_of(asking, wish)
                return await self._attempt(asking, flight, tries)
            except WorkerFailed as failure:
                tries.failures.append(failure)
                if failure.reason in FAILED:
                    is_refusal = tries.is_refusal(failure)
                    self._doubts.add_doubt(failure.worker, tries.kind if is_refusal else None)
                again = self._may_retry(tries)
                self._record_attempt(
                    asking, failure.worker, outcome_of(failure.reason, retried=again)
                )
                if not again:
                    return tries.given_up()

    def _avoided(self, tries: Tries) -> Collection[int]:
        failed = {one.worker for one in tries.failures if one.reason is not AttemptFailure.STALE}
        refusing = failed.union(tries.refusers)
        doubted = refusing | self._doubted(tries) if failed else refusing
        return next((some for some in (doubted, refusing) if self.dispatcher.up - some), failed)

    def _doubted(self, tries: Tries) -> set[int]:
        return self._doubts.among(self.dispatcher.up, tries.kind)

    async def _flight_of(self, asking: Asking, wish: Wish) -> RequestInFlight:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        try:
            return await wait_until_sent(self.dispatcher, asking.request, wish)
        finally:
            held_s = now_s() - begun_s
            self.metrics.totals.count_held(asking.request.client, held_s)
            asking.trace.held_s += held_s

    def _may_retry(self, tries: Tries) -> bool:
        failures = tries.failures
        last = failures[-1]
        if last.reason is AttemptFailure.UNREACHED:
            return len(failures) <= len(self.dispatcher.flights)
        if last.reason is AttemptFailure.STALE:
            return True
        others = self.dispatcher.up - {one.worker for one in failures}
        seen = [one.reason for one in failures if one.reason not in UNSEEN]
        if len(seen) > 1:
            is_cheap = all(reason is AttemptFailure.ANSWERED for reason in seen)
            return is_cheap and bool(others - self._doubted(tries))
        # A retry at the same worker may succeed after a broken connection, but not after an error
        # answer.
        return last.reason is AttemptFailure.BROKE or (
            last.reason is not AttemptFailure.DIED and bool(others)
        )

    def _judge(self, worker: int, tries: Tries) -> None:
        """Record that ``worker`` served a request, and count failures of workers tried before."""
        self._doubts.clear_doubts(worker, tries.kind)
        self.refusals.record_service(worker, tries.kind, tries.size)
        if self.breakers.record_success(worker, tries.client):
            log.warning("worker %d serves again", worker)
            self.dispatcher.join(worker)
        for failure in tries.failures:
            if failure.reason in FAILED and failure.worker != worker:
                if tries.is_refusal(failure):
                    if self.refusals.record_refusal(
                        failure.worker, tries.kind, tries.size, tries.client
                    ):
                        log.warning(
                            "worker %d refused requests that other workers served; requests of the "
                            "same model and fields that need at least %d tokens avoid this worker "
                            "for a while",
                            *(failure.worker, tries.size),
                        )
                else:
                    self._blame(failure.worker, tries.client)

    def _blame(self, worker: int, client: str) -> None:
        if not self.breakers.record_failure(worker, client):
            return
        if self.dispatcher.up <= {worker}:
            # Keep using the worker if no other worker is available.
            self.breakers.reset(worker)
            return
        log.warning(
            "worker %d failed requests that other workers served; it gets no requests for a while",
            worker,
        )
        self.dispatcher.eject(worker)

    async def _attempt(
        self, asking: Asking, flight: RequestInFlight, tries: Tries
    ) -> web.StreamResponse:
        """Send the request to a worker and return the worker's answer.

        If the attempt fails, the method raises WorkerFailed after a health check.
        """

        def begun() -> None:
            asking.slot.begin()
            self.dispatcher.began(flight)
            self._judge(flight.worker, tries)

        heard = partial(self.progress.heard, flight.worker)
        exchange = Exchange(asking.http, asking.call, flight, begun, heard)
        worker = self.workers[flight.worker]
        request = asking.request
        key = tagged_client(request, self.dispatcher.now_s())
        asking.api.sign(asking.call, key)
        names = {headers.ROUTING_KEY: key, headers.SESSION: key}
        shown = {**asking.sent, **names, **worker.authorization}
        session = self.sessions.fresh if tries.failures else self.sessions.kept
        begun_s = asyncio.get_running_loop().time()
        try:
            answer = await exchange.run(session, worker.url + asking.api.path, shown)
        except WorkerFailed as failed:
            self.dispatcher.finish(flight, 0, failed=True)
            reason = await self._confirmed_reason(asking, failed, is_retry=bool(tries.failures))
            raise WorkerFailed(failed.worker, reason, failed.answer) from failed
        except BaseException:
            elapsed_s = asyncio.get_running_loop().time() - begun_s
            self._settle_exchange(asking, flight, exchange, elapsed_s)
            raise
        self._settle_exchange(asking, flight, exchange, asyncio.get_running_loop().time() - begun_s)
        if exchange.failure is None and not asking.slot.begun:
            begun()
        if exchange.failure is AttemptFailure.CUT:
            self.health.suspect(flight.worker)
        return answer

    async def _confirmed_reason(
        self, asking: Asking, failed: WorkerFailed, *, is_retry: bool
    ) -> AttemptFailure:
        """Return why an attempt failed, after a health check if the connection failed.

        If the health check is cancelled, the reason is EVICTED for an evicted request, and
        otherwise LEFT (the client disconnected).
        """
        if failed.reason not in DISCONNECTED:
            return failed.reason
        try:
            healthy = await self.health.check(failed.worker)
        except BaseException:
            reason = AttemptFailure.EVICTED if asking.slot.evicted else AttemptFailure.LEFT
            self._record_attempt(asking, failed.worker, outcome_of(reason))
            raise
        if not healthy and failed.reason is not AttemptFailure.UNREACHED:
            return AttemptFailure.DIED
        if is_retry and failed.reason is AttemptFailure.STALE:
            # A retry uses a new connection, which cannot have been closed while idle.
            return AttemptFailure.BROKE
        return failed.reason

    def _record_attempt(
        self, asking: Asking, worker: int, outcome: str, charge: Charge = NOTHING
    ) -> None:
        self.metrics.totals.count_finished(asking.request.client, outcome, charge)
        asking.trace.end_attempt(worker, outcome, charge)

    def _settle_exchange(
        self, asking: Asking, flight: RequestInFlight, exchange: Exchange, elapsed_s: float
    ) -> None:
        failure = AttemptFailure.EVICTED if asking.slot.evicted else exchange.failure
        charge = self._exchange_charge(asking, flight.worker, exchange, elapsed_s)
        if failure is None:
            self.pace.observe(flight.worker, elapsed_s, charge.output_tokens)
        asking.bill.add_charge(charge)
        self.dispatcher.finish(flight, charge.output_tokens)
        self._record_attempt(asking, flight.worker, outcome_of(failure), charge)
        # Without streaming, the time of the first token is unknown.
        if flight.first_token_s is not None:
            waited_s = flight.first_token_s - asking.request.arrival_s
            self.metrics.totals.waited(FIRST_TOKEN, asking.request.client, waited_s)

    def _exchange_charge(
        self, asking: Asking, worker: int, exchange: Exchange, elapsed_s: float
    ) -> Charge:
        usage, failure = exchange.usage, exchange.failure
        if failure in (AttemptFailure.LEFT, AttemptFailure.CUT):
            token_s = None if asking.call.stream else self.pace.token_s(worker)
            left = failure is AttemptFailure.LEFT and not (
                asking.slot.evicted or exchange.is_finished
            )
            return broken_off(usage, asking.asked, elapsed_s, token_s, left=left)
        if failure is AttemptFailure.ANSWERED and usage.output_tokens is None:
            return NOTHING
        return reported(usage, asking.asked)
