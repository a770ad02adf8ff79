"""Drivers (processes that send a run's requests), and the merging of their results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple, Protocol

from fairbench.config import ExperimentSpec
from fairbench.errors import FairbenchError, RunFailed
from fairbench.execute.tasks import DriveProgress, leave_signals_to_parent
from fairbench_load.driver.drive import DriveResult, drive
from fairbench_load.driver.target import DriverTarget
from fairbench_load.records import (
    FOLDER,
    ClockComparison,
    Journal,
    Offset,
    Shard,
    compare_clocks,
    merge,
    write_clock,
)


class Pipe(Protocol):
    """A connection between a driver and its controlling process, possibly on another machine."""

    def send(self, message: Any, /) -> None:
        """Send a message. Raises OSError if the other end of the pipe is closed."""
        ...

    def recv(self) -> Any:
        """Receive a message. Raises EOFError or OSError if the other end of the pipe is closed."""
        ...


class ReadClock(NamedTuple):
    """A message that asks a driver for the time on its clock, in seconds."""


class Begin(NamedTuple):
    """A message that tells a driver to send the requests of some clients to a server."""

    spec: ExperimentSpec
    target: DriverTarget
    folder: Path
    vocab: range
    shard: Shard


class Ready(NamedTuple):
    """A message that a driver is ready; the reply is the run's start time on the driver's clock."""


class Stop(NamedTuple):
    """A message that asks a driver to end early."""


class Failed(NamedTuple):
    """A message that a driver has failed."""

    error: FairbenchError


def serve(pipe: Pipe, clock: Callable[[], float] = time.monotonic) -> None:
    """Run a driver, which answers the messages of the controlling process until the pipe closes.

    After ``Begin``, the driver sends the load, and reports its progress and finally its result.
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
                    # A driver that failed early has not started the listening thread.
                    if hearing.ident:
                        hearing.join()


def _hear_stop(pipe: Pipe, stop: Event) -> None:
    """Set the event ``stop`` when the message ``Stop`` arrives or the pipe closes."""
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


POLL_S = 0.1
# Drivers start ``LEAD_S`` seconds after the start message is sent.
LEAD_S = 0.2


class Written(NamedTuple):
    """A message with lines for a record file, from a driver on another machine."""

    name: str
    lines: bytes


@dataclass(frozen=True, slots=True)
class Driver:
    """The process of a driver, its name, and its machine ``host`` (None means this machine)."""

    name: str
    pipe: Connection
    host: str | None = None
    is_lost: Callable[[], bool] = lambda: False


class Crew(Protocol):
    """The interface of a set of drivers: processes that send requests from one or more machines."""

    def started(
        self, folder: Path, interrupted: Callable[[], bool]
    ) -> AbstractContextManager[Sequence[Driver]]:
        """Start the drivers, which then wait for messages and write logs into ``folder``.

        Raises RunFailed if a driver does not start, and KeyboardInterrupt if ``interrupted``
        returns True.
        """
        ...


class Team:
    """The drivers of a live run (processes that send requests), for the controlling process.

    ``folders`` lists the folder of each driver's records.
    """

    def __init__(
        self,
        drivers: Sequence[Driver],
        folders: Sequence[Path],
        on_progress: Callable[[DriveProgress], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._drivers, self._folders = drivers, folders
        self._pipes = [driver.pipe for driver in drivers]
        self._on_progress, self._interrupted = on_progress, interrupted

    def clocks(self) -> list[Offset]:
        """Measure each driver's clock offset: its clock minus this machine's clock, in seconds."""
        numbers = range(len(self._pipes))
        return [
            compare_clocks(partial(self._read_clock, number), time.monotonic) for number in numbers
        ]

    def clocks_again(self) -> list[Offset | None]:
        """Measure clock offsets again after the run; the offset of an ended driver is None."""
        found: list[Offset | None] = []
        for number in range(len(self._pipes)):
            try:
                found.append(compare_clocks(partial(self._read_clock, number), time.monotonic))
            except RunFailed:
                found.append(None)
        return found

    def start_all(self, offsets: Sequence[Offset]) -> None:
        """Wait until all drivers are ready, then start all drivers at the same moment."""
        for number in range(len(self._pipes)):
            self._answer_driver(number, Ready)
        start_s = time.monotonic() + LEAD_S
        for number, offset in enumerate(offsets):
            self.tell(number, start_s + offset.offset_s)

    def results(self) -> list[DriveResult]:
        """Wait for each driver's result; an interruption or a failed driver stops all drivers.

        Raises RunFailed if a driver disappears before it has sent its result.
        """
        told: dict[int, DriveProgress] = {}
        ended: dict[int, DriveResult] = {}
        failed: list[Failed] = []
        stopping = False
        going = dict(enumerate(self._pipes))
        while going:
            if not stopping and (failed or self._interrupted()):
                stopping = True
                for number in going:
                    self.tell(number, Stop())
            wait(going.values(), POLL_S)
            for number in [number for number in going if self._has_said(number)]:
                match self._heard(number):
                    case DriveProgress() as progress:
                        told[number] = progress
                    case DriveResult() as result:
                        ended[number] = result
                        del going[number]
                        if not stopping:
                            with suppress(RunFailed):
                                self.tell(number, Stop())
                    case Failed() as failure:
                        failed.append(failure)
                        del going[number]
            if len(told) == len(self._pipes):
                self._on_progress(_together(list(told.values())))
        for failure in failed:
            raise failure.error
        return [ended[number] for number in range(len(self._pipes))]

    def _read_clock(self, number: int) -> float:
        self.tell(number, ReadClock())
        read_s: float = self._answer_driver(number, float)
        return read_s

    def _answer_driver(self, number: int, kind: type[Any]) -> Any:
        while True:
            message = self._heard(number)
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, kind):
                return message

    def tell(self, number: int, message: object) -> None:
        """Send a message to one driver. Raises RunFailed if the driver has died."""
        with self._alive(number):
            self._pipes[number].send(message)

    def _heard(self, number: int) -> Any:
        """Write a driver's records to files; return the next message that contains no records."""
        with self._alive(number):
            while isinstance(message := self._received(number), Written):
                with (self._folders[number] / message.name).open("ab") as file:
                    file.write(message.lines)
        return message

    def _received(self, number: int) -> Any:
        while not self._has_said(number, POLL_S):
            pass
        return self._pipes[number].recv()

    def _has_said(self, number: int, timeout_s: float = 0.0) -> bool:
        """Return whether a driver sends a message within ``timeout_s`` seconds."""
        # Call ``is_lost`` before reading messages, because a driver may send its last messages and
        # then die.
        lost = self._drivers[number].is_lost()
        if self._pipes[number].poll(timeout_s):
            return True
        if lost:
            raise _died(self._drivers[number])
        return False

    @contextmanager
    def _alive(self, number: int) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise _died(self._drivers[number]) from None


def _died(driver: Driver) -> RunFailed:
    return RunFailed(f"{driver.name} died during the run")


def _together(told: Sequence[DriveProgress]) -> DriveProgress:
    service = dict.fromkeys(told[0].service, 0)
    for progress in told:
        for client, tokens in progress.service.items():
            service[client] += tokens
    return DriveProgress(
        now_s=max(progress.now_s for progress in told),
        end_s=told[0].end_s,
        programs_done=sum(progress.programs_done for progress in told),
        programs_started=sum(progress.programs_started for progress in told),
        service=service,
    )


def drive_sharded(
    crew: Crew,
    spec: ExperimentSpec,
    target: DriverTarget,
    folder: Path,
    *,
    vocab: range,
    on_progress: Callable[[DriveProgress], None],
    interrupted: Callable[[], bool],
) -> DriveResult:
    """Send the load of an experiment with several drivers, each for some of the clients.

    Each driver writes its finished requests to a subfolder of ``folder``; ``merge`` joins them.
    Raises RunFailed if a driver process dies, and any error that a driver reports.
    """
    with crew.started(folder, interrupted) as drivers:
        folders = [folder / FOLDER.format(number=number) for number in range(len(drivers))]
        team = Team(drivers, folders, on_progress, interrupted)
        before = team.clocks()
        hosts = [driver.host for driver in drivers]
        for one, offset, host in zip(folders, before, hosts, strict=True):
            one.mkdir(exist_ok=True)
            write_clock(one, ClockComparison(offset, host=host))
            # Create the record file now, because the driver may die before its first message.
            with Journal(one):
                pass
        for number, one in enumerate(folders):
            team.tell(number, Begin(spec, target, one, vocab, Shard(number, len(drivers))))
        team.start_all(before)
        results = team.results()
        late = team.clocks_again()
        for one, early, after, host in zip(folders, before, late, hosts, strict=True):
            write_clock(one, ClockComparison(early, after, host))
    # The record files are created now, because a run may end before the first request.
    with Journal(folder):
        pass
    merge(folder, target.time_scale)
    return joined_result(results)


def joined_result(results: Sequence[DriveResult]) -> DriveResult:
    """Return the result of a run from the results of its drivers."""
    return DriveResult(
        complete=all(result.complete for result in results),
        end_s=max(result.end_s for result in results),
        last_arrival_s=max(result.last_arrival_s for result in results),
    )
