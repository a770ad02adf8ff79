"""Classes that start driver processes on this machine or on other machines.

A driver on another machine runs the following command, connects to this machine and sends records:

    python -m fairbench_load.far_drivers HOST PORT NUMBER

The connection's key is in an environment variable, because all users can see command lines.
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fairbench.errors import FairbenchError, RunFailed, UsageError
from fairbench.execute.tasks import Child, start_child
from fairbench_load.drivers import Begin, Driver, Failed, Written, serve
from fairbench_load.processes.process import Process, ReplicaPlace
from fairbench_load.records import PROGRAMS_FILE, REQUESTS_FILE
from fairbench_load.sent_files import SentFiles

KEY = "FAIRBENCH_DRIVER_KEY"
MODULE = "fairbench_load.far_drivers"


class Telling:
    """A pipe that sends a driver's messages and records to the controlling process.

    The driver sends a message a few times a second, and its new records before each message.
    """

    def __init__(self, pipe: Connection, folder: Path) -> None:
        self._pipe, self._folder = pipe, folder
        self._told = dict.fromkeys((REQUESTS_FILE, PROGRAMS_FILE), 0)

    def recv(self) -> Any:
        """Receive the next message; replace the folder of a ``Begin`` message by a local folder."""
        message = self._pipe.recv()
        return message._replace(folder=self._folder) if isinstance(message, Begin) else message

    def send(self, message: Any, /) -> None:
        """Send all new records of the driver, and then ``message``.

        Only one thread may call this method.
        """
        for name, told in self._told.items():
            if not (path := self._folder / name).exists():
                continue
            with path.open("rb") as file:
                file.seek(told)
                if lines := file.read():
                    self._pipe.send(Written(name, lines))
            self._told[name] += len(lines)
        self._pipe.send(message)


def main(host: str, port: str, number: str) -> None:
    """Connect a driver to the controlling process, receive the driver's work, and send the load."""
    key = bytes.fromhex(os.environ.pop(KEY))
    with (
        # EOFError and OSError mean that the controlling process has closed the connection.
        suppress(EOFError, OSError),
        Client((host, int(port)), authkey=key) as pipe,
        TemporaryDirectory(prefix="fairbench-") as temporary,
    ):
        pipe.send(int(number))
        sent_files: SentFiles = pipe.recv()
        inside, records = Path(temporary, "in"), Path(temporary, "records")
        inside.mkdir()
        records.mkdir()
        try:
            sent_files.check(platform.node())
        except FairbenchError as error:
            pipe.send(Failed(error))
            return
        with sent_files.unpacked(inside):
            serve(Telling(pipe, records))


POLL_S = 0.2
# A driver that connects must send its key within ``ANSWER_S`` whole seconds.
ANSWER_S = 10
# All drivers must start within 120 s; the first import is slow on a busy machine.
START_S = 120.0


@dataclass(frozen=True, slots=True)
class LocalCrew:
    """Several load drivers that run on this machine."""

    drivers: int
    serve: Callable[[Connection], None] = serve

    @contextmanager
    def started(self, folder: Path, interrupted: Callable[[], bool]) -> Iterator[list[Driver]]:
        """Start the drivers, each of which ends when its pipe closes."""
        children: list[Child] = []
        try:
            children.extend(start_child(self.serve) for _ in range(self.drivers))
            yield [Driver(f"driver-{n}", child.pipe) for n, child in enumerate(children)]
        finally:
            for child in children:
                child.pipe.close()
            for child in children:
                child.process.join()


def address_facing(host: str) -> str:
    """Return the IPv4 address under which ``host`` can reach this machine.

    Raises UsageError if this machine has no IPv4 address that ``host`` can reach.
    """
    if ":" in host:
        raise UsageError(
            f"--driver-launcher: node {host} has no IPv4 address, which drivers need; "
            "start the node with an IPv4 address (ray start --node-ip-address)"
        )
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as toward:
            # Connecting a UDP socket sends no packet, but selects the local address.
            toward.connect((host, 9))
            address: str = toward.getsockname()[0]
    except OSError as error:
        raise UsageError(f"--driver-launcher: node {host} cannot be reached: {error}") from None
    return address


@dataclass(frozen=True, slots=True)
class RemoteCrew:
    """Load drivers on other machines (``places``), which connect to ``address`` on this machine.

    Drivers authenticate with a secret key, new in each run, because their messages are unpickled.
    """

    places: Sequence[ReplicaPlace]
    address: str
    sent_files: SentFiles
    patience_s: float = START_S

    @contextmanager
    def started(self, folder: Path, interrupted: Callable[[], bool]) -> Iterator[list[Driver]]:
        """Start the drivers, which write ``driver-N.log`` and end when their pipes close."""
        key = secrets.token_bytes(32)
        with ExitStack() as stack:
            listening = stack.enter_context(socket.create_server((self.address, 0)))
            listening.settimeout(POLL_S)
            port = str(listening.getsockname()[1])
            processes = [
                place.start(
                    [place.python, "-m", MODULE, self.address, port, str(number)],
                    folder / f"driver-{number}.log",
                    {KEY: key.hex()},
                )
                for number, place in enumerate(self.places)
            ]
            for process in processes:
                stack.callback(process.stop)
            pipes = stack.enter_context(self._called(listening, key, processes, interrupted))
            listening.close()
            drivers = [
                Driver(self._driver_name(number), pipe, self.places[number].host, _is_lost(place))
                for number, (pipe, place) in enumerate(zip(pipes, self.places, strict=True))
            ]
            for driver in drivers:
                # Ignore a dead driver here: the next read from its connection reports the error.
                with suppress(OSError):
                    driver.pipe.send(self.sent_files)
            yield drivers

    def _driver_name(self, number: int) -> str:
        return f"driver-{number} at {self.places[number].host}"

    @contextmanager
    def _called(
        self,
        listening: socket.socket,
        key: bytes,
        processes: Sequence[Process],
        interrupted: Callable[[], bool],
    ) -> Iterator[list[Connection]]:
        """Wait until all drivers have connected, and yield their pipes by driver number."""
        found: dict[int, Connection] = {}
        until = time.monotonic() + self.patience_s
        try:
            while len(found) < len(processes):
                if interrupted():
                    raise KeyboardInterrupt
                for number, process in enumerate(processes):
                    if process.exit_code is not None:
                        raise self._not_started(number, f"ended with {process.ending}", process)
                    if number not in found and time.monotonic() > until:
                        said = f"did not call {self.address} within {self.patience_s:g} s"
                        raise self._not_started(number, said, process)
                if (caller := _next_caller(listening, key)) is not None:
                    found |= [caller]
            yield [found[number] for number in range(len(processes))]
        finally:
            for pipe in found.values():
                pipe.close()

    def _not_started(self, number: int, how: str, process: Process) -> RunFailed:
        error = RunFailed(f"{self._driver_name(number)} {how}")
        error.add_note(process.log_tail())
        return error


def _is_lost(place: ReplicaPlace) -> Callable[[], bool]:
    return lambda: place.is_lost


def _next_caller(listening: socket.socket, key: bytes) -> tuple[int, Connection] | None:
    """Accept a driver's connection, and return the driver's number and the connection.

    Both ends of the connection authenticate with the secret ``key``. Returns None if no driver
    connects in time, if the driver's key is wrong, or if the driver has died.
    """
    try:
        caller, _ = listening.accept()
    except TimeoutError:
        return None
    caller.setblocking(True)
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _patience(caller, ANSWER_S)
    pipe = Connection(caller.detach())
    try:
        deliver_challenge(pipe, key)
        answer_challenge(pipe, key)
        number: int = pipe.recv()
    except (AuthenticationError, EOFError, OSError):
        pipe.close()
        return None
    with socket.socket(fileno=pipe.fileno()) as caller:
        _patience(caller, 0)
        caller.detach()
    return number, pipe


def _patience(connected: socket.socket, seconds: int) -> None:
    """Set the receive timeout of a socket in seconds; 0 means no timeout."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))


if __name__ == "__main__":
    main(*sys.argv[1:])
