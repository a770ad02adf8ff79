"""The proxy: a request is read, attributed, routed, passed on, and accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from fairbench.core import Request
from fairbench.live import headers
from fairbench.live.http_server import parsed
from fairbench.live.router.calls import Api, Call
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.dispatcher import RETRY_AFTER_S, Dispatcher, Flight
from fairbench.live.router.exchange import LOST, RETRIED, Exchange, WorkerLost
from fairbench.live.router.health import Health
from fairbench.live.router.identity import client_of
from fairbench.live.router.metrics import RouterMetrics
from fairbench.live.router.problem import Problem
from fairbench.live.router.text_tokens import TextTokens

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# A client's own headers that a worker or the next hop may want.
PASSED_ON = (headers.OUTPUT_TOKENS, headers.PROGRAM, headers.DEPTH, "x-request-id", "traceparent")


class Proxy:
    """Answers requests with a worker's help. Raises Problem where there is no such answer."""

    def __init__(
        self,
        config: RouterConfig,
        session: ClientSession,
        dispatcher: Dispatcher,
        health: Health,
        metrics: RouterMetrics,
        text: TextTokens,
    ) -> None:
        self._config = config
        self._session = session
        self.dispatcher = dispatcher
        self._health = health
        self._metrics = metrics
        self._text = text

    @property
    def healthy(self) -> bool:
        """Whether any worker is up."""
        return bool(self.dispatcher.up)

    @property
    def under_way(self) -> int:
        """Requests at the workers, or held until one may go there."""
        return self.dispatcher.under_way

    async def models(self, http: web.Request) -> web.StreamResponse:
        """``/v1/models``, as the first worker that answers has it."""
        client_of(http.headers, None, self._config.keys)
        timeout = ClientTimeout(total=self._config.health_timeout_s)
        for worker in sorted(self.dispatcher.up):
            url = self._config.workers[worker].url + http.path
            try:
                async with self._session.get(
                    url, headers=self._authorization(http), timeout=timeout
                ) as answer:
                    return web.Response(
                        body=await answer.read(),
                        status=answer.status,
                        content_type="application/json",
                    )
            except (ClientError, OSError):
                self._health.suspect(worker)
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no worker is up")

    async def serve(self, http: web.Request, api: Api) -> web.StreamResponse:
        """One request of an API that generates."""
        client_of(http.headers, None, self._config.keys)  # a stranger's body is not even read
        call = await parsed(await self._read(http), api.read, self._text)
        client = client_of(http.headers, call.user, self._config.keys)
        api.sign(call, client)
        if self.under_way >= self._config.max_queue:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._config.max_queue} requests are under way already",
                retry_after_s=RETRY_AFTER_S,
            )
        request = self.dispatcher.make_request(
            client,
            call.ids,
            call.max_new_tokens,
            _number(http, headers.PROGRAM, -1),
            _number(http, headers.DEPTH, 0),
        )
        for _ in range(len(self._config.workers) + 1):
            try:
                return await self._attempt(http, api.path, call, request)
            except WorkerLost:
                pass
        raise Problem(HTTPStatus.BAD_GATEWAY, "no worker that was asked has answered")

    async def _read(self, http: web.Request) -> bytes:
        try:
            return await http.read()
        except web.RequestPayloadError:
            raise Problem(
                HTTPStatus.BAD_REQUEST, "the body is not encoded as its headers say"
            ) from None
        except web.HTTPRequestEntityTooLarge:
            most = self._config.max_body_bytes
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {most} bytes"
            ) from None

    async def _attempt(
        self, http: web.Request, path: str, call: Call, request: Request
    ) -> web.StreamResponse:
        """Ask one worker. Raises WorkerLost, once it is known whether the worker is down."""
        flight = await self._sent(request)
        exchange = Exchange(http, call, flight, partial(self.dispatcher.began, flight))
        url = self._config.workers[flight.worker].url + path
        try:
            return await exchange.run(self._session, url, self._headers(http, request.client))
        finally:
            self.dispatcher.finish(flight, exchange.usage.output_tokens or 0)
            self._metrics.finished(request.client, exchange.outcome, exchange.usage)
            if exchange.outcome == RETRIED and flight.worker in self.dispatcher.up:
                await self._health.check(flight.worker)
            elif exchange.outcome == LOST:
                self._health.suspect(flight.worker)

    async def _sent(self, request: Request) -> Flight:
        """The request on its way to a worker, once the router lets it go."""
        sent: list[Flight | Problem] = []
        told = asyncio.Event()

        def on_sent(flight: Flight | Problem) -> None:
            sent.append(flight)
            told.set()

        flight = self.dispatcher.dispatch(request, on_sent)
        if flight is not None:
            return flight
        try:
            await told.wait()
        except asyncio.CancelledError:  # the client has left
            self.dispatcher.withdraw(request)
            for one in sent:
                if isinstance(one, Flight):
                    self.dispatcher.finish(one, 0)
            raise
        went = sent[0]
        if isinstance(went, Problem):
            raise went
        if not self.dispatcher.is_under_way(went):  # its worker has left before we were told
            self.dispatcher.finish(went, 0)
            raise WorkerLost
        return went

    def _headers(self, http: web.Request, client: str) -> dict[str, str]:
        return {
            **_kept(http, PASSED_ON),
            **self._authorization(http),
            headers.ROUTING_KEY: client,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # what comes is passed on as it is
        }

    def _authorization(self, http: web.Request) -> dict[str, str]:
        """The client's key, unless it is for this router."""
        return _kept(http, ("Authorization",)) if self._config.keys is None else {}


def _kept(http: web.Request, names: Sequence[str]) -> dict[str, str]:
    return {name: http.headers[name] for name in names if name in http.headers}


def _number(http: web.Request, name: str, default: int) -> int:
    text = http.headers.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{name}: {text!r} is not a number") from None
