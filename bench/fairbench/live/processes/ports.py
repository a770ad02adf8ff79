"""Ports: free ones for servers, and the reservation of a server's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fairbench.errors import UsageError
from fairbench.live.processes.addresses import LOOPBACK


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free at present.

    Another process may take a port before its server does; callers must check the log, and retry.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def reserved(host: str, port: int, shown: str) -> Iterator[int]:
    """Keep a port inside the block, so that no worker started meanwhile takes it.

    A server can still listen there, because the port is bound for reuse and not listened to.

    Args:
        host: Address to listen at.
        port: Port number, 0 for any free port.
        shown: Options that the error names.

    Yields:
        The port number.

    Raises:
        UsageError: The address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            kept.bind((host, port))
        except OSError as error:
            raise UsageError(f"{shown}: {error.strerror}") from None
        yield int(kept.getsockname()[1])
