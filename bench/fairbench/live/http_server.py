"""The HTTP server: the parts that the router and the emulator have in common."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import Purpose, SSLContext, SSLError, create_default_context
from typing import TypeVar, TypeVarTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from fairbench.errors import UsageError
from fairbench.files.reader import opened
from fairbench.live.connections import Connections, bound, most_connections
from fairbench.live.processes.addresses import LOOPBACK
from fairbench.live.requirements import allow_many_connections

CERTIFICATE, KEY = "--tls-cert", "--tls-key"
MOST_BYTES = 2**20
_CERTIFICATE_MARK, _KEY_MARK = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----"
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BACKLOG = 1024
MAX_BODY_BYTES = 64 * 2**20
SHUTDOWN_S = 0.5  # grace period for requests in progress at the end: they had their time already
# Tokenizing a longer text may take a tenth of a second, during which the event loop would be
# blocked.
LONG_BODY_BYTES = 2**18


def server_tls(certificate: Path | None, key: Path | None) -> SSLContext | None:
    """Return the TLS context (1.2 and 1.3) for a pair of PEM files, None without a pair.

    Raises UsageError or DataError if a file is missing, unreadable, of another kind or encrypted,
    or if the two do not match.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = (CERTIFICATE, KEY) if key is None else (KEY, CERTIFICATE)
        raise UsageError(f"{given} needs {missing}, too")
    _check(CERTIFICATE, certificate, _CERTIFICATE_MARK, "certificate")
    _check(KEY, key, _KEY_MARK, "private key")
    context = create_default_context(Purpose.CLIENT_AUTH)

    def no_password() -> bytes:  # without this, OpenSSL would ask at the terminal
        raise UsageError(
            f"{KEY} {key}: the private key is encrypted; give a file without a passphrase"
        )

    try:
        context.load_cert_chain(certificate, key, no_password)
    except SSLError as error:
        pair = f"{CERTIFICATE} {certificate}, {KEY} {key}"
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{pair}: the private key does not belong to the certificate"
            ) from None
        raise UsageError(f"{pair}: cannot be used: {error.reason or error}") from None
    return context


def _check(flag: str, path: Path, mark: bytes, what: str) -> None:
    shown = f"{flag} {path}"
    with opened(path, shown) as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES or mark not in data:
        raise UsageError(f"{shown}: holds no {what} in PEM format")


@dataclass(frozen=True, slots=True)
class Listening:
    """A server at ``url``. SIGINT and SIGTERM set ``stop``; ``site`` accepts the connections."""

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
    """Serve inside the block; a disconnect cancels the client's handler. Port 0 is any free port.

    With ``tls``, the server accepts only HTTPS. Without ``decompress``, bodies are passed on as
    they were sent. The number of connections stays within the limit on open files, and connections
    that send no request are closed. Raises UsageError if the address is not available.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    # set up immediately, because starting may take seconds
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, stop.set)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # which nohup sets
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
        sockets = _bound(host, port, f"--host {host} --port {port}")
        bound_port = sockets[0].getsockname()[1]
        assert runner.server is not None, "it is set up"
        connections.start(runner.server, sockets, tls)
        scheme = "http" if tls is None else "https"
        yield Listening(f"{scheme}://{host}:{bound_port}", connections, stop)
    finally:
        await connections.aclose()
        await runner.cleanup()


@asynccontextmanager
async def listening_beside(app: web.Application, port: int, flag: str) -> AsyncIterator[str]:
    """Serve on a port of this machine only and return the URL; another server handles signals.

    Bodies are passed on as they were sent. Raises UsageError, naming the ``flag``, if the port is
    not available.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, auto_decompress=False)
    await runner.setup()
    try:
        (listens,) = _bound(LOOPBACK, port, f"{flag} {port}")
        await web.SockSite(runner, listens).start()
        yield f"http://{LOOPBACK}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def is_our_fault(record: logging.LogRecord) -> bool:
    """Return False for client disconnects and malformed requests, which may contain keys."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError | web.RequestPayloadError)


def _bound(host: str, port: int, shown: str) -> list[socket.socket]:
    try:
        return bound(host, port, BACKLOG)
    except OSError as error:
        raise UsageError(f"{shown}: {error.strerror}") from None


async def parsed(raw: bytes, parse: Callable[[bytes, *Ts], T], *args: *Ts) -> T:
    """Call ``parse(raw, *args)``, in a thread if the body is long.

    Raises the errors of ``parse``.
    """
    if len(raw) < LONG_BODY_BYTES:
        return parse(raw, *args)
    return await asyncio.to_thread(parse, raw, *args)


def metrics_page(registry: CollectorRegistry) -> web.Response:
    """Return the ``/metrics`` page in Prometheus format."""
    return web.Response(
        body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
