"""The admin endpoint on its own port: lists, adds and drains workers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fairbench.errors import UsageError
from fairbench.files.reader import is_key
from fairbench.live.json_errors import errors_as_json
from fairbench.live.processes.addresses import WorkerAddress, parse_worker
from fairbench.live.router.encodings import check_plain
from fairbench.live.router.hosts import LOOPBACK_HOSTS, check_host
from fairbench.live.router.identity import check_bearer
from fairbench.live.router.membership import Membership
from fairbench.live.router.problem import Problem, bad_request, problems_as_answers
from fairbench.live.router.worker_keys import WorkerKeys

PATH = "/workers"
FIELDS = ("url", "key")
PATIENCE_S = 2.0  # in which a worker that is added may become healthy before the answer
MOST_BYTES = 2**16


def admin_app(
    membership: Membership, worker_keys: WorkerKeys, key: str | None = None
) -> web.Application:
    """Return the admin application. With ``key``, callers must send this key.

    ``worker_keys`` are the keys of workers to be added. Web pages in a browser on this machine can
    reach the endpoint but have no effect: another site cannot send JSON, nor use a name of this
    machine.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        _check_caller(request, key)
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
        [
            web.get(PATH, show),
            web.post(PATH, add),
            web.delete(PATH + r"/{worker:\d{1,9}}", drain),
        ]
    )
    return app


def worker_in(body: Any, keys: WorkerKeys) -> WorkerAddress:
    """Return the worker that a body names: ``url`` as in ``--worker-url``, ``key`` if unknown.

    Raises Problem.
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
        raise bad_request("key: must be a text of printable ASCII, without spaces at its ends")
    return WorkerAddress(address.url, address.kv_events, address.kv_replay, key)


def _check_caller(request: web.Request, key: str | None) -> None:
    """Raise Problem for a page of another site, and for a caller without the key."""
    check_host(request, LOOPBACK_HOSTS, addresses=False)
    if key is not None:
        check_bearer(request, key, "the admin key")


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
