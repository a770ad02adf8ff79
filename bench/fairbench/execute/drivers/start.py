"""Starting drivers: as processes of this machine, or at the places of a launcher."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.drivers import remote_process
from fairbench.execute.drivers.process import serve
from fairbench.execute.drivers.sharded import Driver
from fairbench.execute.local_processes import Child, start_child
from fairbench.execute.sent_files import SentFiles
from fairbench.live.processes.process import Place, Process

POLL_S = 0.2
ANSWER_S = 10  # time for a caller to send the key, whole seconds
START_S = 120.0  # a first import takes long on a busy machine


@dataclass(frozen=True, slots=True)
class LocalCrew:
    """A number of drivers on this machine."""

    drivers: int
    serve: Callable[[Connection], None] = serve

    @contextmanager
    def started(self, folder: Path, interrupted: Callable[[], bool]) -> Iterator[list[Driver]]:
        """Start the drivers; they end when their pipes close."""
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
    """Return this machine's IPv4 address that the host can reach.

    Raises UsageError if there is none.
    """
    if ":" in host:
        raise UsageError(
            f"--driver-launcher: node {host} has no IPv4 address, which drivers need; "
            "start the node with one (ray start --node-ip-address)"
        )
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as toward:
            toward.connect((host, 9))  # connecting a UDP socket sends nothing
            address: str = toward.getsockname()[0]
    except OSError as error:
        raise UsageError(f"--driver-launcher: node {host} cannot be reached: {error}") from None
    return address


@dataclass(frozen=True, slots=True)
class RemoteCrew:
    """Drivers at the given places, which connect back to ``address`` on this machine.

    A driver authenticates with a key that is new for each start, because messages are unpickled.
    """

    places: Sequence[Place]
    address: str
    sent_files: SentFiles
    patience_s: float = START_S

    @contextmanager
    def started(self, folder: Path, interrupted: Callable[[], bool]) -> Iterator[list[Driver]]:
        """Start the drivers, with logs ``driver-N.log``; they end when their pipes close."""
        key = secrets.token_bytes(32)
        with ExitStack() as stack:
            listening = stack.enter_context(socket.create_server((self.address, 0)))
            listening.settimeout(POLL_S)
            processes = [
                place.start(
                    [
                        place.python,
                        "-m",
                        remote_process.__name__,
                        self.address,
                        f"{listening.getsockname()[1]}",
                        f"{number}",
                    ],
                    folder / f"driver-{number}.log",
                    {remote_process.KEY: key.hex()},
                )
                for number, place in enumerate(self.places)
            ]
            for process in processes:
                stack.callback(process.stop)
            pipes = stack.enter_context(self._called(listening, key, processes, interrupted))
            listening.close()
            drivers = [
                Driver(self._name(number), pipe, self.places[number].host, _is_lost(place))
                for number, (pipe, place) in enumerate(zip(pipes, self.places, strict=True))
            ]
            for driver in drivers:
                with suppress(OSError):  # the driver has died; the next reader gets the error
                    driver.pipe.send(self.sent_files)
            yield drivers

    def _name(self, number: int) -> str:
        return f"driver-{number} at {self.places[number].host}"

    @contextmanager
    def _called(
        self,
        listening: socket.socket,
        key: bytes,
        processes: Sequence[Process],
        interrupted: Callable[[], bool],
    ) -> Iterator[list[Connection]]:
        """Yield the pipes of all drivers in order of number, once all have connected."""
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
        error = RunFailed(f"{self._name(number)} {how}")
        error.add_note(process.log_tail())
        return error


def _is_lost(place: Place) -> Callable[[], bool]:
    return lambda: place.is_lost


def _next_caller(listening: socket.socket, key: bytes) -> tuple[int, Connection] | None:
    """Return the number and the connection of the next driver that knows the key.

    None without a caller, for a caller without the key, or for a driver that died meanwhile.
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
    """Set the socket's own receive timeout, in seconds; 0 means no timeout."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
