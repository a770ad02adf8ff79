"""The proxy, which reads requests, identifies clients, and passes requests on to workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from aiohttp import ClientResponse, ClientSession, ClientTimeout, web

from fairbench.schedulers.gateway.registry import needs_sessions
from fairbench_load import headers, http_server
from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.answers import HighestCost, is_object
from fairbench_serve.bodies import BodyLease, BodyMemory, read_body, usual_bytes
from fairbench_serve.calls import Api, Call
from fairbench_serve.client_limits import ConcurrencyLimit, evicted
from fairbench_serve.config import RouterConfig
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.exchange import CONNECTION_ERRORS
from fairbench_serve.health import Health
from fairbench_serve.identity import NO_SESSION, authorization_of, client_of, session_of
from fairbench_serve.keys_file import Access
from fairbench_serve.prompts import PromptLimits, TextTokens
from fairbench_serve.retries import Asking, Attempts
from fairbench_serve.spans import NO_TRACES, RequestTrace, Traces
from fairbench_serve.worker_info import WorkerFacts

# maximum length of the header that lists the routers through which a request has passed
MOST_PASSED = 1024
ASK_S = 60.0  # seconds within which a worker must answer a request that generates nothing
REFUSED_BY_ALL = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
JSON_BODY = {"Content-Type": "application/json"}
_WHOLE = re.compile("-?[0-9]{1,18}")
# headers of a client that are passed on to the worker or to the next router
PASSED_ON = (headers.OUTPUT_TOKENS, headers.PROGRAM, headers.DEPTH, "traceparent")


@dataclass(eq=False)
class Proxy:
    """A proxy that answers clients' requests by sending them to workers.

    Methods raise Problem if no worker answers.
    """

    config: RouterConfig
    workers: Sequence[WorkerAddress]
    session: ClientSession
    dispatcher: Dispatcher
    health: Health
    attempts: Attempts
    facts: WorkerFacts
    text: TextTokens
    access: Access
    traces: Traces

    def __post_init__(self) -> None:
        most, most_each = self.config.max_queue, self.config.max_queue_per_client
        self._limit = ConcurrencyLimit(most, most_each or most, self.access.weights)
        self._long_bodies = asyncio.Semaphore(1)
        self._memory = BodyMemory(self.config.max_bodies_bytes or usual_bytes())

    async def models(self, http: web.Request) -> web.StreamResponse:
        """Return ``/v1/models``, or the entry of one model, from the first worker that has it."""
        client_of(http.headers, None, self.access.keys)
        name = http.match_info.get("model")
        page = WorkerPage("GET", "/v1/models", partial(_models_of, name=name))
        return await self._first_page(http, page, sorted(self.dispatcher.up))

    async def version(self, http: web.Request) -> web.StreamResponse:
        """Return the page ``/version`` of the first worker that has it, such as a vLLM server."""
        client_of(http.headers, None, self.access.keys)
        return await self._first_page(
            http, WorkerPage("GET", "/version"), sorted(self.dispatcher.up)
        )

    async def _first_page(
        self, http: web.Request, page: WorkerPage, workers: Iterable[int]
    ) -> web.StreamResponse:
        """Return ``page`` from the first worker that has the page, or the last worker's error."""
        timeout = ClientTimeout(total=self.config.health_timeout_s if page.body is None else ASK_S)
        last = None
        for worker in workers:
            address = self.workers[worker]
            sent = {**self._authorization(http), **JSON_BODY, **address.authorization}
            try:
                asked = self.session.request(
                    page.method, address.url + page.path, data=page.body, headers=sent,
                    timeout=timeout, allow_redirects=False,
                )  # fmt: skip
                async with asked as answer:
                    last = await page.read(answer)
            except CONNECTION_ERRORS:
                self.health.suspect(worker)
            else:
                is_told = page.body is not None and last.status in REFUSED_BY_ALL
                if last.status == HTTPStatus.OK or is_told:
                    break
        if last is None:
            raise http_server.Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no worker is available")
        return last

    async def answer_request(self, http: web.Request, api: Api) -> web.StreamResponse:
        sent = self._headers(http)
        traces = self.traces if api.generates else NO_TRACES
        with traces.request(api.path, sent) as trace:
            # Find the client without the body, which has not been read yet. With API keys,
            # fairbench never reads the body of a request with an unknown key.
            known = client_of(http.headers, None, self.access.keys)
            if self.access.keys is not None:
                trace.client = known
                self.access.quotas.check_quota(known)
            try:
                with self._memory.lease(known) as lease:
                    return await self._answer_body(http, api, sent, trace, lease)
            except http_server.Problem as problem:
                client = trace.client or known
                self.attempts.metrics.totals.count_refused(client, problem.status)
                raise

    async def _answer_body(
        self,
        http: web.Request,
        api: Api,
        sent: dict[str, str],
        trace: RequestTrace,
        lease: BodyLease,
    ) -> web.StreamResponse:
        limits, most = self.facts.limits, self.config.max_body_bytes
        call = await self._parsed(await read_body(http, most, lease), api, limits)
        said = call.client(self.config.client_from)
        trace.client = client = client_of(http.headers, said, self.access.keys)
        promise = self.config.promises.promise_for(http.headers)
        most_output = limits.most_tokens if call.max_new_tokens is None else call.max_new_tokens
        reserved = min(call.reserved_output, limits.most_tokens)
        wanted = len(call.ids) + reserved
        if not api.generates:
            page = WorkerPage("POST", api.path, body=call.body())
            flights = self.dispatcher.flights
            idlest = sorted(self.dispatcher.up, key=lambda worker: len(flights[worker]))
            with self._limit.take_slot(client):
                return await self._first_page(http, page, idlest)
        with (
            self.access.quotas.lease(client, wanted) as bill,
            self._limit.take_slot(client) as slot,
        ):
            place = self._session(http, call), _header_number(http, headers.DEPTH, 0)
            request = self.dispatcher.make_request(client, call.ids, reserved, *place, promise)
            asked = HighestCost(
                len(call.ids),
                len(call.ids) if call.exact else limits.most_tokens,
                min(most_output, limits.most_tokens) * call.answers,
                call.answers,
            )
            asking = Asking(http, api, call, request, slot, asked, sent, bill, trace)
            return await self._unless_evicted(asking)

    def _session(self, http: web.Request, call: Call) -> int:
        number = _header_number(http, headers.PROGRAM, NO_SESSION)
        if number == NO_SESSION:
            number = session_of(http.headers, call.said.get(headers.BODY_SESSION))
        if number == NO_SESSION and needs_sessions(self.config.gateway):
            raise http_server.bad_request(
                f"the gateway {self.config.gateway} needs the session of each request: send the "
                f"header {headers.SESSION_ALIASES[0]}, or {headers.BODY_SESSION} in the body"
            )
        return number

    async def _unless_evicted(self, asking: Asking) -> web.StreamResponse:
        try:
            async with asyncio.timeout(None) as scope:
                asking.slot.on_evicted = partial(scope.reschedule, 0.0)
                return await self.attempts.answer_request(asking)
        except TimeoutError:
            raise evicted() from None

    async def _parsed(self, raw: bytes, api: Api, limits: PromptLimits) -> Call:
        """Parse a body into a ``Call``; long bodies are parsed one at a time to limit memory."""
        if len(raw) < http_server.LONG_BODY_BYTES:
            return api.read(raw, self.text, limits)
        async with self._long_bodies:
            return await http_server.parsed(raw, api.read, self.text, limits)

    def _headers(self, http: web.Request) -> dict[str, str]:
        passed = http.headers.get(headers.ROUTERS, "")
        if self.config.router_id in passed.split(","):
            said = "this router is reached through one of its own workers"
            raise http_server.Problem(HTTPStatus.LOOP_DETECTED, said)
        return {
            **{name: http.headers[name] for name in PASSED_ON if name in http.headers},
            **self._authorization(http),
            headers.ROUTERS: f"{passed},{self.config.router_id}".lstrip(",")[-MOST_PASSED:],
            # vLLM uses this header as the request's id, so a client must not choose the header's
            # value.
            "x-request-id": uuid4().hex,
            "Content-Type": "application/json",
        }

    def _authorization(self, http: web.Request) -> dict[str, str]:
        """Return a header with the client's API key, unless the key belongs to this router."""
        shown = authorization_of(http.headers) if self.access.keys is None else ""
        return {"Authorization": shown} if shown else {}


def _header_number(http: web.Request, name: str, default: int) -> int:
    text = http.headers.get(name)
    if text is None:
        return default
    if not _WHOLE.fullmatch(text):
        raise http_server.bad_request(f"{name}: {text[:40]!r} must be a number")
    return int(text)


class _Listed(msgspec.Struct):
    data: list[dict[str, Any]]


async def _passed(answer: ClientResponse) -> web.Response:
    """Return a worker's answer; convert an error that is not JSON to a JSON error."""
    body, status = await answer.read(), answer.status
    if not (answer.ok or is_object(body)):
        body = http_server.error_body(
            status, f"the worker answered with status {status} without JSON"
        )
    return web.Response(body=body, status=status, content_type="application/json")


async def _models_of(answer: ClientResponse, name: str | None) -> web.Response:
    return models_in(await answer.read(), name) if answer.ok else await _passed(answer)


class WorkerPage(NamedTuple):
    """An HTTP page of workers that the router fetches without queueing, and the page's parser."""

    method: str
    path: str
    read: Callable[[ClientResponse], Awaitable[web.Response]] = _passed
    body: bytes | None = None


def models_in(listed: bytes, name: str | None) -> web.Response:
    """Return a worker's model list or one named model, or an error with HTTP status 404 or 502."""
    try:
        models = msgspec.json.decode(listed, type=_Listed).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        said = "the worker does not list its models"
        return http_server.Problem(HTTPStatus.BAD_GATEWAY, said).response()
    if name is None:
        return web.Response(body=listed, content_type="application/json")
    for model in models:
        if model.get("id") == name:
            return web.Response(body=msgspec.json.encode(model), content_type="application/json")
    return http_server.no_such_model(name)
