"""The process of one driver: reads its clock, drives its clients, reports progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

from fairbench.config import ExperimentSpec
from fairbench.errors import FairbenchError
from fairbench.execute.local_processes import leave_signals_to_parent
from fairbench.live.driver.drive import DriveResult, drive
from fairbench.live.driver.shards import Shard
from fairbench.live.driver.target import Target


class Pipe(Protocol):
    """A connection between a driver and its controller, possibly on another machine."""

    def send(self, message: Any, /) -> None:
        """Send a message. Raises OSError if the other end is closed."""
        ...

    def recv(self) -> Any:
        """Receive a message. Raises EOFError or OSError if the other end is closed."""
        ...


class ReadClock(NamedTuple):
    """A question for the time on the driver's clock, in seconds."""


class Begin(NamedTuple):
    """The work of a driver, sent once."""

    spec: ExperimentSpec
    target: Target
    folder: Path
    vocab: range
    shard: Shard


class Ready(NamedTuple):
    """A message that all is loaded; the answer is the start time on the driver's clock."""


class Stop(NamedTuple):
    """A message that the driver should end its run now."""


class Failed(NamedTuple):
    """A message: the driver failed."""

    error: FairbenchError


def serve(pipe: Pipe, clock: Callable[[], float] = time.monotonic) -> None:
    """Answer questions until the pipe closes, and drive on request.

    The pipe gives ``DriveProgress`` and, last of a drive, ``DriveResult`` or ``Failed``.
    """
    leave_signals_to_parent()
    stop = Event()
    with suppress(EOFError, OSError):
        while True:
            match pipe.recv():
                case ReadClock():
                    pipe.send(clock())
                case Begin() as begin:
                    hearing = Thread(target=_hear_stop, args=(pipe, stop), daemon=True)
                    pipe.send(_driven(begin, pipe, clock, hearing, stop))
                    if hearing.ident:  # the answer, unless the driver failed before
                        hearing.join()


def _hear_stop(pipe: Pipe, stop: Event) -> None:
    """Wait for ``Stop``, the only message during a drive, and set the event."""
    with suppress(EOFError, OSError):
        pipe.recv()
    stop.set()


def _driven(
    begin: Begin, pipe: Pipe, clock: Callable[[], float], hearing: Thread, stop: Event
) -> DriveResult | Failed:
    def starts_in_s() -> float:
        pipe.send(Ready())
        start_s: float = pipe.recv()
        hearing.start()
        return start_s - clock()

    try:
        return asyncio.run(
            drive(
                begin.spec,
                begin.target,
                begin.folder,
                vocab=begin.vocab,
                shard=begin.shard,
                starts_in_s=starts_in_s,
                on_progress=pipe.send,
                interrupted=stop.is_set,
            )
        )
    except FairbenchError as error:
        return Failed(error)
