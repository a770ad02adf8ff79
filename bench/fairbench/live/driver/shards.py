"""Shards: the records and clocks of several drivers, each with some of the clients, merged.

Each driver has a folder with its records and the offset of its clock. Records are written
immediately, as in any run, and a run that was killed is completed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairbench.errors import DataError
from fairbench.files.json_text import json_file
from fairbench.live.records import Journal, ProgramRecord, RequestRecord, read_records

ROUNDS = 20
CLOCK_FILE = "clock.json"
FOLDER = "driver-{number}"
TIMES = ("arrival_s", "sent_s", "admitted_s", "first_token_s", "finish_s")

R = TypeVar("R", RequestRecord, ProgramRecord)


class Offset(msgspec.Struct, frozen=True):
    """The lead of a clock over this machine's in seconds, with an error of up to ``uncertainty_s``.

    ``at_s`` is the time of the measurement on our clock.
    """

    at_s: float
    offset_s: float
    uncertainty_s: float


def compare(ask: Callable[[], float], now_s: Callable[[], float], rounds: int = ROUNDS) -> Offset:
    """Return the offset of the clock that ``ask`` reads, which takes time, against ``now_s``.

    The reading happens at some moment between request and reply. Its time is taken to be the
    midpoint, with an error of up to half the round trip, even if the two directions differ
    (Cristian, "Probabilistic clock synchronization", 1989). The fastest of ``rounds`` rounds
    counts.
    """
    return min((_once(ask, now_s) for _ in range(rounds)), key=lambda found: found.uncertainty_s)


def _once(ask: Callable[[], float], now_s: Callable[[], float]) -> Offset:
    asked_s, read_s, heard_s = now_s(), ask(), now_s()
    middle_s = (asked_s + heard_s) / 2
    return Offset(middle_s, read_s - middle_s, (heard_s - asked_s) / 2)


class Comparison(msgspec.Struct, frozen=True):
    """A driver's clock against this machine's before and after a run; None if not asked again.

    ``host`` is where the driver is, or None for this machine.
    """

    before: Offset
    after: Offset | None = None
    host: str | None = None

    @property
    def drift_s(self) -> float:
        """The increase of the clock's lead over the run; 0 if within the combined uncertainty."""
        if self.after is None:
            return 0.0
        drift_s = self.after.offset_s - self.before.offset_s
        unsure_s = self.after.uncertainty_s + self.before.uncertainty_s
        return drift_s if abs(drift_s) > unsure_s else 0.0

    @property
    def uncertainty_s(self) -> float:
        """The uncertainty, in seconds, of times that this clock comparison corrects."""
        after = self.before if self.after is None else self.after
        return max(self.before.uncertainty_s, after.uncertainty_s)

    def ahead_s(self, since_s: float) -> float:
        """Return the lead after ``since_s`` seconds of this machine's clock."""
        if self.after is None or self.after.at_s <= self.before.at_s:
            return 0.0
        return self.drift_s * since_s / (self.after.at_s - self.before.at_s)


class Shard(NamedTuple):
    """A share of the load: driver ``number`` takes every ``drivers``-th client."""

    number: int = 0
    drivers: int = 1

    def of(self, clients: Sequence[Any]) -> Sequence[Any]:
        return clients[self.number :: self.drivers]


WHOLE = Shard()


def write_clock(folder: Path, comparison: Comparison) -> None:
    """Store the comparison of the clock of the driver with this folder."""
    hidden = folder / f".{CLOCK_FILE}"
    hidden.write_bytes(msgspec.json.encode(comparison) + b"\n")
    hidden.replace(folder / CLOCK_FILE)


def clocks(folder: Path) -> list[Comparison]:
    """Return the clock comparisons of all drivers in order; empty with a single driver.

    Raises DataError if a comparison cannot be read.
    """
    found: list[Comparison] = []
    while (path := folder / FOLDER.format(number=len(found)) / CLOCK_FILE).exists():
        try:
            found.append(msgspec.convert(json_file(path, f"{path}"), Comparison))
        except msgspec.ValidationError as error:
            raise DataError(f"{path}: {error}") from None
    return found


def merge(folder: Path, time_scale: float) -> None:
    """Write the records of several drivers into ``folder``, by our clock.

    ``time_scale`` is the number of the run's seconds per second of a clock. A second call writes
    the same records.
    """
    found = clocks(folder)
    if not found:
        return
    with Journal(folder) as journal:
        for number, clock in enumerate(found):
            records = read_records(folder / FOLDER.format(number=number))
            for request in records.requests:
                journal.request(corrected(request, clock, time_scale))
            for program in records.programs:
                journal.program(corrected(program, clock, time_scale))


def corrected(record: R, clock: Comparison, time_scale: float) -> R:
    """Return the record with times on this machine's clock, corrected for clock drift."""
    if not clock.drift_s:
        return record

    def ours(time_s: float) -> float:
        return time_s - clock.ahead_s(time_s / time_scale) * time_scale

    times = {name: getattr(record, name, None) for name in TIMES}
    changed: dict[str, Any] = {name: ours(at_s) for name, at_s in times.items() if at_s is not None}
    if isinstance(record, RequestRecord):
        changed["chunk_s"] = [ours(at_s) for at_s in record.chunk_s]
    return msgspec.structs.replace(record, **changed)


def told(folder: Path) -> list[dict[str, float | str]]:
    """Return the manifest's entry for each driver: its remote host, if any, and its clock."""
    return [
        {
            **({} if clock.host is None else {"host": clock.host}),
            "offset_s": clock.before.offset_s,
            "uncertainty_s": clock.uncertainty_s,
            "drift_s": clock.drift_s,
        }
        for clock in clocks(folder)
    ]
