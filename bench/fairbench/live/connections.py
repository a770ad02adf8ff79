"""Connections of an HTTP server: limits on their number and on the time that one stays idle.

asyncio's own server accepts until there are no descriptors left, and then writes a traceback for
every entry of its backlog. This server stops accepting before that.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

HEADER_S = 20.0  # seconds for a new connection to send the header of its first request
IDLE_S = 75.0  # seconds for a connection with an answer to send the next request
OTHER_FILES = 64  # descriptors for logs, sockets of KV events, health checks and listening sockets
FILES_EACH = 2  # a client's connection, and one to the worker that serves it
LOOK_S = 1.0
RETRY_S = 0.01  # seconds until a closed connection has ended
AT_ONCE = 64  # connections accepted in one turn of the loop
CLOSED_AT_ONCE = 16  # divisor of the limit: this part of it is closed at once if idle
COMPLAIN_S = 60.0
MOST_AHEAD = 2  # requests that are read before the answer to an earlier one on the connection

log = logging.getLogger(__name__)


def most_connections() -> int:
    """Return how many clients, each with a worker connection, the open-file limit allows."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        most = 2**20
    return max(1, (most - min(OTHER_FILES, most // 4)) // FILES_EACH)


def bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen at every address of a host, "" for all. Raises OSError.

    Port 0 is any free port. At most ``backlog`` connections wait in the kernel to be accepted.
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
    """The connections of a server, at most ``most`` of them.

    If there are that many, connections that wait for a request are closed to make room, the longest
    idle first. If all have a request in progress, new connections wait in the kernel's backlog.
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
        """The outermost middleware, which tracks connections with a request in progress."""

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

    def start(
        self, server: web.Server, sockets: Sequence[socket.socket], tls: SSLContext | None
    ) -> None:
        """Accept connections at these sockets, which are closed at the end."""
        self._server, self._sockets, self.tls = server, sockets, tls
        self._watching = asyncio.create_task(self._watch())
        self._resume()

    async def stop(self) -> None:
        """Accept no more connections; open connections stay."""
        loop = asyncio.get_running_loop()
        for one in self._sockets:
            loop.remove_reader(one)
        _close(self._sockets)
        self._sockets = ()

    async def aclose(self) -> None:
        """Accept no more connections, and stop watching the open ones."""
        await self.stop()
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
            if not self._has_room():
                if number == 0:  # after the first turn, no further client may be waiting
                    self._make_room()
                self._pause()
                return
            try:
                accepted, _ = listens.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # mostly a lack of descriptors, which others have taken
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
        except OSError:  # there was no handshake, or the client has left
            accepted.close()
            return
        # aiohttp would keep 32, whose bodies no limit counts. Other releases lack the attributes.
        with suppress(AttributeError):
            connection._max_msg_queue_size, connection._msg_queue_resume_size = MOST_AHEAD, 0
        self._since_s[connection] = asyncio.get_running_loop().time()

    def _has_room(self) -> bool:
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

    async def _watch(self) -> None:
        """Close connections that have sent no request for too long."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._forget_closed()
            now_s = asyncio.get_running_loop().time()
            for connection in list(self._idle()):
                most_s = IDLE_S if connection in self._answered else HEADER_S
                if now_s - self._since_s[connection] > most_s:
                    connection.force_close()


def _close(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        with suppress(OSError):
            one.close()
