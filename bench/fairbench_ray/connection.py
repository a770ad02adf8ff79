"""A separate process that connects to Ray.

The main process does not connect to Ray, because Ray ends every process that loses the cluster's
head node.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Thread
from time import sleep
from typing import Any, NamedTuple, NoReturn

from fairbench.execute.tasks import leave_signals_to_parent

ANSWER_S = 10.0  # seconds within which a TCP connection to a node must open
LOOK_S = 2.0  # seconds between two checks whether the node of this process answers


class Connected(NamedTuple):
    """A message that the process has connected to the Ray cluster."""


class Unreachable(NamedTuple):
    """A message that no Ray cluster was found at the address."""

    reason: str


@contextmanager
def connected(pipe: Connection, address: str) -> Iterator[Any]:
    """Connect to the cluster, and yield the module ``ray``, or None if the connection fails.

    The outcome, ``Connected`` or ``Unreachable``, is sent through ``pipe``. Tasks that were started
    in the ``with`` block end with the block. If the other end of ``pipe`` closes, the ``with``
    block ends without an error. If this process loses its node of the cluster, the process ends.
    """
    leave_signals_to_parent()
    # The command may print JSON to standard output, so Ray's own output goes to standard error.
    os.dup2(2, 1)
    import ray

    # An EOFError or OSError means that the parent process has died.
    with suppress(EOFError, OSError):
        try:
            host, colon, port = address.rpartition(":")
            if colon and "/" not in host:
                socket.create_connection((host, int(port)), ANSWER_S).close()
            ray.init(address, log_to_driver=False, logging_level="CRITICAL")
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or f"{error}".strip()
            pipe.send(Unreachable(reason.partition("\n")[0]))
            yield None
            return
        try:
            own = ray.get_runtime_context().get_node_id()
            (node,) = (node for node in ray.nodes() if node["NodeID"] == own)
            home = node["NodeManagerAddress"], node["NodeManagerPort"]
        except (ValueError, RuntimeError, ray.exceptions.RayError):
            # The Ray node that this process uses is failing; the parent process will connect again.
            give_up()
        Thread(target=_watch, args=home, name="home", daemon=True).start()
        pipe.send(Connected())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # replaces the handler that Ray installs
        try:
            yield ray
        finally:
            ray.shutdown()  # also ends the remaining tasks of this process


def give_up() -> NoReturn:
    """Kill this process with SIGKILL, so that the parent process notices the loss.

    Ray's own shutdown would wait for nodes that no longer exist.
    """
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # never reached, because SIGKILL ends the process first


def _watch(host: str, port: int) -> None:
    """End this process as soon as the Ray node at ``host`` and ``port`` refuses connections.

    If the head restarts at its old address within a minute, Ray mistakes the new head for the old
    head and waits forever. The function checks the node instead of Ray's head, because a head may
    be unreachable for a while without being lost.
    """
    while True:
        sleep(LOOK_S)
        try:
            socket.create_connection((host, port), ANSWER_S).close()
        except ConnectionRefusedError:
            give_up()
        except OSError:
            # A busy node may answer late, so a timeout does not mean that the node is lost.
            continue
