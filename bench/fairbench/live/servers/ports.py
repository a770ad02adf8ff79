"""Free ports on this machine."""

from __future__ import annotations

import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"
TAKEN = ("address already in use", "address in use")  # what a server's log says, in lower case


def free_ports(count: int) -> list[int]:
    """So many different ports that were free just now.

    Another process may take one before its server does: look for ``TAKEN`` in its log and retry.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
