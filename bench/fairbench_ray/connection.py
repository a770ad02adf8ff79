"""The connection to Ray in its own process, because Ray ends a process without a head."""

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

from fairbench.execute.local_processes import leave_signals_to_parent

ANSWER_S = 10.0
LOOK_S = 2.0


class Connected(NamedTuple):
    """The first message: the cluster is connected."""


class Unreachable(NamedTuple):
    """A message that no cluster was found at the address."""

    reason: str


@contextmanager
def connected(pipe: Connection, address: str) -> Iterator[Any]:
    """Yield Ray connected to the cluster, or None; the pipe receives which of the two.

    Tasks begun inside end with the block. The block also ends, without an error, when the other end
    of the pipe is closed. The process ends once its node is lost.
    """
    leave_signals_to_parent()
    os.dup2(2, 1)  # Ray prints events of its nodes; our standard output may be JSON
    import ray

    with suppress(EOFError, OSError):  # the parent has died
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
            give_up()  # the node is about to die: the parent connects again
        Thread(target=_watch, args=home, name="home", daemon=True).start()
        pipe.send(Connected())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray handles this signal itself
        try:
            yield ray
        finally:
            ray.shutdown()  # this ends our remaining tasks


def give_up() -> NoReturn:
    """End this process, as Ray does without a head; the parent notices.

    Ray's own shutdown would wait for absent nodes.
    """
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # not reached


def _watch(host: str, port: int) -> None:
    """End this process once the address does not answer any more.

    If the head returns at the same address within a minute, Ray takes the new head for the old one
    and waits forever. The head may be away for a while, and is therefore not asked.
    """
    while True:
        sleep(LOOK_S)
        try:
            socket.create_connection((host, port), ANSWER_S).close()
        except ConnectionRefusedError:
            give_up()
        except OSError:
            continue  # slack for a busy machine
