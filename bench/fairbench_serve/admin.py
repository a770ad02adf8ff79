"""The admin port, through which operators add and remove workers without a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fairbench.errors import UsageError
from fairbench.files.reader import is_key
from fairbench_load.http_server import Problem, bad_request, errors_as_json, problems_as_answers
from fairbench_load.processes.addresses import WorkerAddress, parse_worker
from fairbench_serve.addresses import same_worker
from fairbench_serve.bodies import check_plain
from fairbench_serve.breaker import Breakers
from fairbench_serve.dispatcher import Dispatcher
from fairbench_serve.health import Health
from fairbench_serve.identity import LOOPBACK_HOSTS, check_bearer, check_host, check_single
from fairbench_serve.keys_file import WorkerKeys

log = logging.getLogger(__name__)

PATH = "/workers"
FIELDS = ("url", "key")
# maximum number of seconds for which a POST request waits until the added worker is healthy
PATIENCE_S = 2.0
MOST_BYTES = 2**16  # maximum number of bytes of an admin request's body


@dataclass(eq=False)
class Membership:
    """The set of workers, which an operator can change through the admin port.

    Each added worker gets a new number, and a removed worker stays in the list ``workers``. The
    functions ``follow(worker)`` and ``unfollow(worker)`` are called for each added and each removed
    worker.
    """

    workers: list[WorkerAddress]
    dispatcher: Dispatcher
    health: Health
    breakers: Breakers
    follow: Callable[[int], None]
    unfollow: Callable[[int], None]

    def __post_init__(self) -> None:
        # The lock prevents two concurrent calls from adding the same worker twice.
        self._adding = asyncio.Lock()

    def rows(self) -> list[dict[str, Any]]:
        return [self.row(worker) for worker in self.dispatcher.flights]

    def row(self, worker: int) -> dict[str, Any]:
        """Return a worker's number, address, state and request count, but not its API key."""
        address = self.workers[worker]
        return {
            "worker": worker,
            "url": address.url,
            "kv_events": address.kv_events,
            "state": self._state(worker),
            "under_way": len(self.dispatcher.flights.get(worker, ())),
        }

    def _state(self, worker: int) -> str:
        dispatcher = self.dispatcher
        if worker not in dispatcher.flights:
            return "removed"
        if dispatcher.is_draining(worker):
            return "draining"
        if worker in dispatcher.up:
            return "up"
        return "ejected" if self.breakers.is_open(worker) else "down"

    async def add(self, address: WorkerAddress, patience_s: float) -> int:
        """Add a worker; return its number once it is checked, or after ``patience_s`` seconds.

        A new worker gets requests once it has passed a health check. Raises Problem (HTTP status
        409) if the worker is already known or is this router itself, or if the routing policy does
        not support more workers.
        """
        self._check_changeable()
        if await self.health.is_this_router(address, patience_s):
            raise Problem(HTTPStatus.CONFLICT, f"{address.url} is this router itself")
        async with self._adding:
            worker = await self._numbered(address)
        await asyncio.wait([self.health.suspect(worker)], timeout=patience_s)
        return worker

    async def _numbered(self, address: WorkerAddress) -> int:
        """Add a worker under a new number; raise Problem if its address is already in use."""
        known = {self.workers[worker].url: worker for worker in self.dispatcher.flights}
        twin = await asyncio.to_thread(same_worker, address.url, tuple(known))
        if twin is not None:
            shown = "" if twin == address.url else f" ({twin})"
            said = f"{address.url} is already worker {known[twin]}{shown}"
            raise Problem(HTTPStatus.CONFLICT, said)
        worker = self.dispatcher.add(followed=address.kv_events is not None)
        self.workers.append(address)
        assert self.workers[worker] is address
        self.breakers.add_worker(worker)
        self.follow(worker)
        log.info("worker %d is added: %s", worker, address.url)
        return worker

    def drain(self, worker: int) -> None:
        """Stop sending requests to a worker, and remove the worker after its last request.

        Draining a worker twice has no further effect. Raises Problem with HTTP status 404 for an
        unknown worker, and 409 if it is the last available worker or the router cannot remove it.
        """
        if worker not in self.dispatcher.flights:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no worker {worker}")
        if self.dispatcher.is_draining(worker):
            return
        self._check_changeable()
        if self.dispatcher.up == {worker}:
            raise Problem(
                HTTPStatus.CONFLICT,
                f"worker {worker} is the only available worker, and cannot be drained",
            )
        log.info("worker %d is being drained", worker)
        self.breakers.forget_worker(worker)

        def removed() -> None:
            self.unfollow(worker)
            log.info("worker %d is removed", worker)

        self.dispatcher.drain(worker, removed)

    def _check_changeable(self) -> None:
        if not self.dispatcher.can_change:
            name = self.dispatcher.router.name
            raise Problem(
                HTTPStatus.CONFLICT, f"workers cannot be added or drained with the router {name}"
            )


def admin_app(
    membership: Membership, worker_keys: WorkerKeys, key: str | None = None
) -> web.Application:
    """Return the HTTP application of the admin port.

    If ``key`` is given, callers must send this API key. ``worker_keys`` holds the API keys of
    workers that may be added. A web page in a browser on the router's machine cannot change the
    workers. Browsers let no web page send JSON to another site without permission, and requests
    with a foreign host name are refused.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        check_single(request)
        check_host(request, LOOPBACK_HOSTS, addresses=False)
        if key is not None:
            check_bearer(request, key, "the admin key")
        return await handler(request)

    async def show(_: web.Request) -> web.Response:
        return web.json_response({"workers": membership.rows()})

    async def add(request: web.Request) -> web.Response:
        address = worker_in(await _body(request), worker_keys)
        worker = await membership.add(address, PATIENCE_S)
        return web.json_response(membership.row(worker), status=HTTPStatus.CREATED)

    async def drain(request: web.Request) -> web.Response:
        worker = int(request.match_info["worker"])
        membership.drain(worker)
        return web.json_response(membership.row(worker), status=HTTPStatus.ACCEPTED)

    middlewares = [errors_as_json, problems_as_answers, guard]
    app = web.Application(client_max_size=MOST_BYTES, middlewares=middlewares)
    app.add_routes(
        [web.get(PATH, show), web.post(PATH, add), web.delete(PATH + "/{worker:[0-9]{1,9}}", drain)]
    )
    return app


def worker_in(body: Any, keys: WorkerKeys) -> WorkerAddress:
    """Return a worker's address from the fields ``url`` and ``key`` of a request body.

    Raises Problem for an invalid field.
    """
    if not isinstance(body, dict) or not isinstance(body.get("url"), str):
        raise bad_request('send {"url": "http://HOST:PORT[,kv=...[,replay=...]]"}')
    for field in body:
        if field not in FIELDS:
            raise bad_request(f"field {field!r} is unknown: choose from {' and '.join(FIELDS)}")
    try:
        address = keys.signed(parse_worker(body["url"], "url"))
    except UsageError as error:
        raise bad_request(str(error)) from None
    key = body.get("key")
    if key is None:
        return address
    if not isinstance(key, str) or not is_key(key):
        raise bad_request(
            "key: must consist of printable ASCII, without leading or trailing spaces"
        )
    return WorkerAddress(address.url, address.kv_events, address.kv_replay, key)


async def _body(request: web.Request) -> Any:
    if request.content_type != "application/json":
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON: send it with Content-Type: application/json",
        )
    check_plain(request)
    try:
        return msgspec.json.decode(await request.read())
    except (ValueError, RecursionError, web.RequestPayloadError):
        raise bad_request("the body must be JSON") from None
