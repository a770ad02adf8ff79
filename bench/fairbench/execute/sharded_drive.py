"""The load of a live run from several processes, whose records become one set.

One process that sends thousands of requests a second sends them late. Needs the live extra.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.errors import RunFailed
from fairbench.execute.child import Child, start_child
from fairbench.execute.driver_child import Begin, Failed, ReadClock, Ready, Stop, serve
from fairbench.live.driver.clocks import Comparison, Offset, compare
from fairbench.live.driver.drive import DriveProgress, DriveResult
from fairbench.live.driver.journal import Journal
from fairbench.live.driver.shards import FOLDER, Shard, merge, write_clock
from fairbench.live.driver.target import Target

POLL_S = 0.1
LEAD_S = 0.2  # from telling them all when to start to the start

Serve = Callable[[Connection], None]


class ShardedDrive:
    """Drives a run with ``drivers`` processes, each with a part of its clients."""

    def __init__(self, drivers: int, serve: Serve = serve) -> None:
        self._drivers = drivers
        self._serve = serve

    def __call__(
        self,
        spec: ExperimentSpec,
        target: Target,
        folder: Path,
        *,
        vocab: range,
        on_progress: Callable[[DriveProgress], None],
        interrupted: Callable[[], bool],
    ) -> DriveResult:
        """As ``live.driver.drive`` does. Raises RunFailed if a driver dies, and what one raised.

        What finished is in the drivers' folders at once, and in ``folder`` at the end.
        """
        with _children(self._drivers, self._serve) as children:
            team = _Team(children, on_progress, interrupted)
            before = team.clocks()
            folders = [folder / FOLDER.format(number=number) for number in range(len(children))]
            for one, offset in zip(folders, before, strict=True):
                one.mkdir(exist_ok=True)
                write_clock(one, Comparison(offset))
            for number, one in enumerate(folders):
                shard = Shard(number, len(children))
                team.tell(number, Begin(spec, target, one, vocab, shard))
            team.start_all(before)
            results = team.results()
            for one, early, late in zip(folders, before, team.clocks(), strict=True):
                write_clock(one, Comparison(early, late))
        with Journal(folder):  # there, even if nobody had begun
            pass
        merge(folder, target.time_scale)
        return DriveResult(
            complete=all(result.complete for result in results),
            end_s=max(result.end_s for result in results),
            last_arrival_s=max(result.last_arrival_s for result in results),
        )


class _Team:
    def __init__(
        self,
        children: Sequence[Child],
        on_progress: Callable[[DriveProgress], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._pipes = [child.pipe for child in children]
        self._on_progress, self._interrupted = on_progress, interrupted

    def clocks(self) -> list[Offset]:
        """How far each one's clock is from ours now."""
        numbers = range(len(self._pipes))
        return [compare(partial(self._read_clock, number), time.monotonic) for number in numbers]

    def start_all(self, offsets: Sequence[Offset]) -> None:
        """Have all start at the same moment, once all have made ready."""
        for number in range(len(self._pipes)):
            self._answer(number, Ready)
        start_s = time.monotonic() + LEAD_S
        for number, offset in enumerate(offsets):
            self.tell(number, start_s + offset.offset_s)

    def results(self) -> list[DriveResult]:
        """How each one's drive ended; all are told to stop once we are, or one of them failed."""
        told: dict[int, DriveProgress] = {}
        ended: dict[int, DriveResult] = {}
        failed: list[Failed] = []
        stopping = False
        while len(ended) + len(failed) < len(self._pipes):
            if not stopping and (failed or self._interrupted()):
                stopping = True
                for number in set(range(len(self._pipes))) - set(ended):
                    self.tell(number, Stop())
            ready = wait(self._pipes, POLL_S)
            for number in (n for n, pipe in enumerate(self._pipes) if pipe in ready):
                match self._heard(number):
                    case DriveProgress() as progress:
                        told[number] = progress
                    case DriveResult() as result:
                        ended[number] = result
                        if not stopping:
                            self.tell(number, Stop())
                    case Failed() as failure:
                        failed.append(failure)
            if len(told) == len(self._pipes):
                self._on_progress(_together(list(told.values())))
        for failure in failed:
            raise failure.error
        return [ended[number] for number in range(len(self._pipes))]

    def _read_clock(self, number: int) -> float:
        self.tell(number, ReadClock())
        read_s: float = self._answer(number, float)
        return read_s

    def _answer(self, number: int, kind: type[Any]) -> Any:
        while True:
            message = self._heard(number)
            if isinstance(message, Failed):
                raise message.error
            if isinstance(message, kind):
                return message

    def tell(self, number: int, message: object) -> None:
        """Send one of them something. Raises RunFailed if it has died."""
        with _alive(number):
            self._pipes[number].send(message)

    def _heard(self, number: int) -> Any:
        with _alive(number):
            return self._pipes[number].recv()


@contextmanager
def _alive(number: int) -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise RunFailed(f"driver-{number} died during the run") from None


def _together(told: Sequence[DriveProgress]) -> DriveProgress:
    """How far all of them are: each client is one driver's, and 0 for the others."""
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


@contextmanager
def _children(count: int, serve: Serve) -> Iterator[list[Child]]:
    """So many processes; without their pipes they end."""
    children: list[Child] = []
    try:
        children.extend(start_child(serve) for _ in range(count))
        yield children
    finally:
        for child in children:
            child.pipe.close()
        for child in children:
            child.process.join()
