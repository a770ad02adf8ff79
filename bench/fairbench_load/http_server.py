"""The HTTP server of router and emulator, with limits on connections and their idle time.

asyncio's server accepts connections until no file descriptor is left, and then logs a traceback for
each waiting connection. The server in this module keeps its connections below the limit on open
files. The server sends errors in the format of OpenAI's API.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from ssl import SSLContext
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from fairbench.errors import UsageError
from fairbench_load import headers
from fairbench_load.processes.addresses import LOOPBACK
from fairbench_load.processes.environment import allow_many_connections

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
RETRY_AFTER_S = 5
MOST_SHOWN = 200  # maximum number of characters of a path or name that a message quotes


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Return an error as the JSON body of a response.

    ``param`` is the name of the request field that causes the error.
    """
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    kind = _TYPES.get(status, fallback)
    error = {"message": message, "type": kind, "param": param, "code": int(status)}
    return msgspec.json.encode({"error": error})


def error_answer(status: int, message: str, param: str | None = None) -> web.Response:
    """Return an error as a JSON response with the HTTP status ``status``."""
    body = error_body(status, message, param)
    return web.Response(body=body, status=status, content_type="application/json")


def no_such_model(name: str) -> web.Response:
    """Return the 404 response for a model that no server offers."""
    said = f"the model {name[:MOST_SHOWN]!r} does not exist"
    return error_answer(HTTPStatus.NOT_FOUND, said, "model")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send errors that aiohttp raises, such as 404 for an unknown path, as JSON responses.

    If a request's body was not read completely, the connection is closed after the response,
    because the unread part would look like the next request.
    """
    answer = await _handled(request, handler)
    if not (answer.prepared or request.content.at_eof()):
        answer.force_close()
    return answer


async def _handled(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = error_answer(
            error.status, f"{_request_line(request)}: allowed methods are {allowed}"
        )
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPNotFound as error:
        return error_answer(error.status, f"{_request_line(request)}: this path does not exist")
    except web.HTTPRequestEntityTooLarge as error:
        return error_answer(error.status, "the body is too long")
    except web.RequestPayloadError:
        said = "the encoding of the body does not match its headers"
        return error_answer(HTTPStatus.BAD_REQUEST, said)


def _request_line(request: web.Request) -> str:
    return f"{request.method[:20]} {request.rel_url.raw_path[:MOST_SHOWN]}"


class Problem(Exception):
    """A reason to refuse a request, with a message to the client.

    ``worker`` is the number of the worker that failed, if a worker failed.
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        retry_after_s: int | None = None,
        worker: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.worker = worker

    def response(self) -> web.Response:
        """Return the error as a response, for a request whose answer has not begun."""
        response = error_answer(self.status, str(self))
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(self.retry_after_s)
        if self.worker is not None:
            response.headers[headers.WORKER] = str(self.worker)
        return response

    def event(self, *, named: bool = False, done: bool = True) -> bytes:
        """Return the error as the last events of a stream that has begun.

        Clients of OpenAI's API and of SGLang recognise the returned events as an error. ``named``
        adds an event name, for APIs whose clients ignore events without names. ``done`` adds the
        event "[DONE]", which ends a stream of OpenAI's API.
        """
        body = error_body(self.status, str(self))
        if named:
            body = b'{"type":"error",%b' % body[1:]
        name = b"event: error\n" if named else b""
        return b"%bdata: %b\n\n%b" % (name, body, b"data: [DONE]\n\n" if done else b"")


@web.middleware
async def problems_as_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert a ``Problem`` that the handler raises into an error response."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response()


def too_many(message: str, retry_after_s: int = RETRY_AFTER_S) -> Problem:
    """Return the error for HTTP status 429 (too many requests), after which a client may retry."""
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, message, retry_after_s=retry_after_s)


def unavailable(message: str) -> Problem:
    """Return the error for HTTP status 503: no worker is available at present."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S)


def bad_request(message: str) -> Problem:
    """Return the error for HTTP status 400: the request is invalid."""
    return Problem(HTTPStatus.BAD_REQUEST, message)


HEADER_S = 20.0  # seconds within which the first request header of a new connection must arrive
IDLE_S = 75.0  # seconds for which a connection may be idle between two requests
# Logs, KV events, health checks and listening sockets need ``OTHER_FILES`` file descriptors.
OTHER_FILES = 64
# Each client needs two file descriptors: its connection and the router's connection to a worker.
FILES_EACH = 2
LOOK_S = 1.0  # seconds between two searches for idle connections
RETRY_S = 0.01  # seconds to wait until closed connections have released their file descriptors
AT_ONCE = 64  # maximum number of connections that are accepted before other tasks run
# At the connection limit, at most one sixteenth of all connections is closed at a time.
CLOSED_AT_ONCE = 16
COMPLAIN_S = 60.0  # seconds between two equal warnings in the log
# maximum number of requests that aiohttp reads ahead on a connection while it answers another
# request
MOST_AHEAD = 2

log = logging.getLogger(__name__)


def most_connections() -> int:
    """Return how many client connections the limit on open files allows.

    A client connection needs up to two file descriptors: its own and that of a worker connection.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        most = 2**20
    return max(1, (most - min(OTHER_FILES, most // 4)) // FILES_EACH)


def bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of a host; "" means all addresses.

    Port 0 means that any free port is used. At most ``backlog`` connections wait in the kernel to
    be accepted. Raises OSError if an address is not available.
    """
    sockets: list[socket.socket] = []
    kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
    found = socket.getaddrinfo(host or None, port, type=kind, flags=flags)
    try:
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            listens = socket.socket(family, kind)
            sockets.append(listens)
            listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listens.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listens.bind(address)
            listens.listen(backlog)
            listens.setblocking(False)
    except OSError:
        _close(sockets)
        raise
    return sockets


class Connections:
    """A server's open connections, of which at most ``most`` are open at a time.

    If the limit is reached, the connections that have been idle longest are closed. If every open
    connection has a request in progress, new connections wait in the kernel's backlog.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._since_s: dict[RequestHandler, float] = {}
        self._answered: set[RequestHandler] = set()
        self._busy: set[RequestHandler] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._server: web.Server | None = None
        self._sockets: Sequence[socket.socket] = ()
        self.tls: SSLContext | None = None
        self._watching: asyncio.Task[None] | None = None
        self._complained_s: float | None = None

    @property
    def middleware(self) -> Middleware:
        """The middleware that records which connections have a request in progress.

        This middleware must be the application's outermost middleware.
        """

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._busy.add(connection)
            try:
                return await handler(request)
            finally:
                self._busy.discard(connection)
                if connection in self._since_s:
                    self._since_s[connection] = asyncio.get_running_loop().time()
                    self._answered.add(connection)

        return noted

    def accept_at(
        self, server: web.Server, sockets: Sequence[socket.socket], tls: SSLContext | None
    ) -> None:
        """Accept connections at the given sockets, which ``aclose`` closes."""
        self._server, self._sockets, self.tls = server, sockets, tls
        self._watching = asyncio.create_task(self._close_idle())
        self._resume()

    async def stop_accepting(self) -> None:
        """Close the listening sockets, and leave accepted connections open."""
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
        _close(self._sockets)
        self._sockets = ()

    async def aclose(self) -> None:
        """Close the listening sockets, and stop the search for idle connections."""
        await self.stop_accepting()
        tasks = [*self._opening, *([self._watching] if self._watching else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.add_reader(one, self._accept, one)

    def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
        loop.call_later(RETRY_S, self._resume)

    def _accept(self, listens: socket.socket) -> None:
        for number in range(AT_ONCE):
            if not self._has_free_slot():
                # If this call has accepted no connection (``number`` is 0), an idle connection is
                # closed for the client that waits to connect.
                if number == 0:
                    self._make_room()
                self._pause()
                return
            try:
                accepted, _ = listens.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            # ``accept`` usually fails because other code has opened too many files.
            except OSError as error:
                self._complain(f"no connection can be accepted: {error.strerror}")
                self._pause()
                return
            accepted.setblocking(False)
            task = asyncio.create_task(self._open(accepted))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket) -> None:
        assert self._server is not None
        try:
            _, connection = await asyncio.get_running_loop().connect_accepted_socket(
                self._server,
                accepted,
                ssl=self.tls,
                ssl_handshake_timeout=HEADER_S if self.tls else None,
            )
        except OSError:  # The client disconnected, or the TLS handshake failed.
            accepted.close()
            return
        # aiohttp reads up to 32 requests of a connection in advance, each of any size. In most
        # releases of aiohttp, two private attributes limit the number of requests read in advance.
        with suppress(AttributeError):
            connection._max_msg_queue_size, connection._msg_queue_resume_size = MOST_AHEAD, 0
        self._since_s[connection] = asyncio.get_running_loop().time()

    def _has_free_slot(self) -> bool:
        if len(self._since_s) + len(self._opening) < self._most:
            return True
        self._forget_closed()
        return len(self._since_s) + len(self._opening) < self._most

    def _make_room(self) -> None:
        self._complain(
            f"{self._most} connections are open, the most that the limit on open files allows"
        )
        idle = sorted(self._idle(), key=lambda one: self._since_s[one])
        for connection in idle[: max(1, self._most // CLOSED_AT_ONCE)]:
            connection.force_close()

    def _idle(self) -> Iterable[RequestHandler]:
        return (one for one in self._since_s if one not in self._busy)

    def _forget_closed(self) -> None:
        assert self._server is not None
        open_now = set(self._server.connections)
        for connection in [one for one in self._since_s if one not in open_now]:
            del self._since_s[connection]
            self._answered.discard(connection)

    def _complain(self, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._complained_s is None or now_s - self._complained_s >= COMPLAIN_S:
            self._complained_s = now_s
            log.warning("%s: idle connections are closed, new ones wait", why)

    async def _close_idle(self) -> None:
        """Close connections that send no request for too long, until this task is cancelled.

        While the event loop is blocked, the server cannot see requests that arrive, so this time
        does not count as idle.
        """
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self._forget_closed()
            now_s = loop.time()
            if (late_s := now_s - due_s) > LOOK_S:
                for connection in self._since_s:
                    self._since_s[connection] += late_s
            for connection in list(self._idle()):
                most_s = IDLE_S if connection in self._answered else HEADER_S
                if now_s - self._since_s[connection] > most_s:
                    connection.force_close()


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        with suppress(OSError):
            one.close()


T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BACKLOG = 1024
MAX_BODY_BYTES = 64 * 2**20
# When a server ends, requests in progress may continue for ``SHUTDOWN_S`` seconds.
SHUTDOWN_S = 0.5
# Request bodies of at least 256 KiB are parsed in a thread, because parsing and tokenizing such a
# body may block the event loop for 0.1 s.
LONG_BODY_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Listening:
    """An HTTP server that is running at ``url``.

    SIGINT and SIGTERM set the event ``stop``.
    """

    url: str
    site: Connections
    stop: asyncio.Event


@asynccontextmanager
async def listening(
    app: web.Application,
    host: str,
    port: int,
    tls: SSLContext | None = None,
    *,
    decompress: bool = True,
) -> AsyncIterator[Listening]:
    """Run an HTTP server for the application while the ``with`` block runs.

    If a client disconnects, the handler of its request is cancelled.

    Port 0 means that any free port is used. If ``tls`` is given, the server accepts only HTTPS. If
    ``decompress`` is False, compressed request bodies are not decompressed. Raises UsageError if
    the address is not available.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    # Signal handlers are set first, because the application may take seconds to start.
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    # A process started with nohup ignores SIGHUP, and must continue to do so.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    allow_many_connections()
    logging.getLogger("aiohttp.server").addFilter(is_our_fault)
    connections = Connections(most_connections())
    app.middlewares.insert(0, connections.middleware)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
        auto_decompress=decompress,
    )
    await runner.setup()
    try:
        sockets = _bound_sockets(host, port, f"--host {host} --port {port}")
        bound_port = sockets[0].getsockname()[1]
        assert runner.server is not None, "it is set up"
        connections.accept_at(runner.server, sockets, tls)
        scheme = "http" if tls is None else "https"
        yield Listening(f"{scheme}://{host}:{bound_port}", connections, stop)
    finally:
        await connections.aclose()
        await runner.cleanup()


@asynccontextmanager
async def listening_beside(app: web.Application, port: int, flag: str) -> AsyncIterator[str]:
    """Serve an additional application on a local port during the ``with`` block; yield its URL.

    Compressed request bodies are not decompressed. Raises UsageError, which names the ``flag``, if
    the port is not available.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, auto_decompress=False)
    await runner.setup()
    try:
        (listens,) = _bound_sockets(LOOPBACK, port, f"{flag} {port}")
        await web.SockSite(runner, listens).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def is_our_fault(record: logging.LogRecord) -> bool:
    """Return whether a log record reports a fault of this server itself.

    Records about disconnects and malformed requests may contain the API keys of clients.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError | web.RequestPayloadError)


def _bound_sockets(host: str, port: int, shown: str) -> list[socket.socket]:
    try:
        return bound(host, port, BACKLOG)
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror}") from None


async def parsed(raw: bytes, parse: Callable[[bytes, *Ts], T], *args: *Ts) -> T:
    """Return ``parse(raw, *args)``; a long body is parsed in a thread.

    An exception raised by ``parse`` reaches the caller.
    """
    if len(raw) < LONG_BODY_BYTES:
        return parse(raw, *args)
    return await asyncio.to_thread(parse, raw, *args)


def metrics_page(registry: CollectorRegistry) -> web.Response:
    """Return the response for ``/metrics``, in the format of Prometheus."""
    return web.Response(
        body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
