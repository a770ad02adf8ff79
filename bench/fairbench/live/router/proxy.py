"""The proxy: a request is read, attributed to a client, routed, passed on, and charged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout, web

from fairbench.live import headers
from fairbench.live.http_server import LONG_BODY_BYTES, parsed
from fairbench.live.json_errors import no_such_model
from fairbench.live.processes.addresses import WorkerAddress
from fairbench.live.router.access import Access
from fairbench.live.router.attempts import Asking, Attempts
from fairbench.live.router.body_memory import BodyLease, BodyMemory, usual_bytes
from fairbench.live.router.calls import Api, Call
from fairbench.live.router.charges import Asked
from fairbench.live.router.concurrency_limit import ConcurrencyLimit, evicted
from fairbench.live.router.config import RouterConfig
from fairbench.live.router.dispatcher import Dispatcher
from fairbench.live.router.encodings import Decoder
from fairbench.live.router.health import Health
from fairbench.live.router.identity import client_of
from fairbench.live.router.problem import Problem, bad_request
from fairbench.live.router.prompt_limits import PromptLimits
from fairbench.live.router.text_tokens import TextTokens
from fairbench.live.router.traces import Trace, Traces
from fairbench.live.router.worker_info import WorkerFacts

MOST_PASSED = 1024  # characters of the routers that a request has passed, the last ones
BODY_S = 120.0  # in which a body has to be complete
# A client's own headers that a worker or the next hop may want.
PASSED_ON = (headers.OUTPUT_TOKENS, headers.PROGRAM, headers.DEPTH, "traceparent")


class Proxy:
    """Answers requests with the help of a worker. Raises Problem if no answer is possible."""

    def __init__(
        self,
        config: RouterConfig,
        workers: Sequence[WorkerAddress],
        session: ClientSession,
        dispatcher: Dispatcher,
        health: Health,
        attempts: Attempts,
        facts: WorkerFacts,
        text: TextTokens,
        access: Access,
        traces: Traces,
    ) -> None:
        self._config = config
        self._workers = workers
        self._session = session
        self.dispatcher = dispatcher
        self._health = health
        self._attempts = attempts
        self._facts = facts
        self._text = text
        self._access = access
        self._traces = traces
        self._limit = ConcurrencyLimit(
            config.max_queue, config.max_queue_per_client or config.max_queue, access.weights
        )
        self._long_bodies = asyncio.Semaphore(1)
        self._memory = BodyMemory(config.max_bodies_bytes or usual_bytes())

    @property
    def healthy(self) -> bool:
        """Return whether any worker is up."""
        return bool(self.dispatcher.up)

    @property
    def under_way(self) -> int:
        """Requests at the workers, and queued requests."""
        return self.dispatcher.under_way

    async def models(self, http: web.Request) -> web.StreamResponse:
        """Return ``/v1/models``, or a named model, from the first worker that answers."""
        client_of(http.headers, None, self._access.keys)
        timeout = ClientTimeout(total=self._config.health_timeout_s)
        for worker in sorted(self.dispatcher.up):
            address = self._workers[worker]
            sent = {**self._authorization(http), **address.authorization}
            try:
                async with self._session.get(
                    address.url + "/v1/models", headers=sent, timeout=timeout, allow_redirects=False
                ) as answer:
                    listed = await answer.read()
                    if answer.ok and (name := http.match_info.get("model")) is not None:
                        return named_model(listed, name)
                    return web.Response(
                        body=listed, status=answer.status, content_type="application/json"
                    )
            except (ClientError, OSError):
                self._health.suspect(worker)
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no worker is available")

    async def serve(self, http: web.Request, api: Api) -> web.StreamResponse:
        """Serve one request of an API that generates."""
        sent = self._headers(http)
        with self._traces.request(api.path, sent) as trace:
            return await self._served(http, api, sent, trace)

    async def _served(
        self, http: web.Request, api: Api, sent: dict[str, str], trace: Trace
    ) -> web.StreamResponse:
        known = client_of(http.headers, None, self._access.keys)  # what its body says is to come
        if self._access.keys is not None:  # a stranger's body is not even read
            trace.client = known
            self._access.quotas.ask(known)
        with self._memory.lease(known) as lease:
            return await self._answered(http, api, sent, trace, lease)

    async def _answered(
        self,
        http: web.Request,
        api: Api,
        sent: dict[str, str],
        trace: Trace,
        lease: BodyLease,
    ) -> web.StreamResponse:
        limits = self._facts.limits
        call = await self._parsed(await self._read(http, lease), api, limits)
        said = call.client(self._config.client_from)
        trace.client = client = client_of(http.headers, said, self._access.keys)
        promise = self._config.promises.of(http.headers)
        most_output = limits.most_tokens if call.max_new_tokens is None else call.max_new_tokens
        wanted = len(call.ids) + min(call.max_new_tokens or 0, limits.most_tokens)
        with self._limit.take(client) as slot, self._access.quotas.lease(client, wanted) as bill:
            request = self.dispatcher.make_request(
                client,
                call.ids,
                most_output,
                _number(http, headers.PROGRAM, -1),
                _number(http, headers.DEPTH, 0),
                promise,
            )
            asked = Asked(
                len(call.ids),
                len(call.ids) if call.exact else limits.most_tokens,
                min(most_output, limits.most_tokens),
            )
            asking = Asking(http, api, call, request, slot, asked, sent, bill, trace)
            return await self._unless_evicted(asking)

    async def _unless_evicted(self, asking: Asking) -> web.StreamResponse:
        """Return the answer. Raises Problem if the request is evicted meanwhile."""
        try:
            async with asyncio.timeout(None) as scope:
                asking.slot.on_evicted = partial(scope.reschedule, 0.0)
                return await self._attempts.serve(asking)
        except TimeoutError:
            raise evicted() from None

    async def _parsed(self, raw: bytes, api: Api, limits: PromptLimits) -> Call:
        """Parse the call in a body; long bodies are parsed one at a time to limit memory."""
        if len(raw) < LONG_BODY_BYTES:
            return api.read(raw, self._text, limits)
        async with self._long_bodies:
            return await parsed(raw, api.read, self._text, limits)

    async def _read(self, http: web.Request, lease: BodyLease) -> bytes:
        body, most, decoder = bytearray(), self._config.max_body_bytes, Decoder(http)
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in http.content.iter_any():
                    body += decoder.feed(piece, most)
                    if len(body) > most:
                        raise Problem(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                            f"the body has more than {most} bytes",
                        )
                    lease.grow(len(body))
        except TimeoutError:
            raise Problem(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {BODY_S:g} s"
            ) from None
        except web.RequestPayloadError:
            raise bad_request("the length of the body does not match its headers") from None
        decoder.end()
        return bytes(body)

    def _headers(self, http: web.Request) -> dict[str, str]:
        passed = http.headers.get(headers.ROUTERS, "")
        if self._config.router_id in passed.split(","):
            said = "this router is reached through one of its own workers"
            raise Problem(HTTPStatus.LOOP_DETECTED, said)
        return {
            **_kept(http, PASSED_ON),
            **self._authorization(http),
            headers.ROUTERS: f"{passed},{self._config.router_id}".lstrip(",")[-MOST_PASSED:],
            "x-request-id": uuid4().hex,  # by which vLLM knows a request, so nobody may choose it
            "Content-Type": "application/json",
        }

    def _authorization(self, http: web.Request) -> dict[str, str]:
        """Return the client's key for the worker, unless the key belongs to this router."""
        return _kept(http, ("Authorization",)) if self._access.keys is None else {}


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


class _Listed(msgspec.Struct):
    data: list[dict[str, Any]]


def named_model(listed: bytes, name: str) -> web.Response:
    """Return a model from a worker's list, else 404. Raises Problem for an invalid list."""
    try:
        models = msgspec.json.decode(listed, type=_Listed).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Problem(HTTPStatus.BAD_GATEWAY, "the worker does not list its models") from None
    for model in models:
        if model.get("id") == name:
            return web.Response(body=msgspec.json.encode(model), content_type="application/json")
    return no_such_model(name)
