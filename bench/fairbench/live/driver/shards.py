"""Shards: the records of several drivers, each with some of the clients, merged into one set.

Each has a folder with its records and how its clock compares; what is in them is there at once, as
of any run, so a run that was killed is made whole in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairbench.errors import DataError
from fairbench.files.json_text import json_file
from fairbench.live.driver.clocks import Comparison
from fairbench.live.driver.journal import Journal
from fairbench.live.records import ProgramRecord, RequestRecord, read_records

CLOCK_FILE = "clock.json"
FOLDER = "driver-{number}"
TIMES = ("arrival_s", "sent_s", "admitted_s", "first_token_s", "finish_s")

R = TypeVar("R", RequestRecord, ProgramRecord)


class Shard(NamedTuple):
    """A share of the load: driver ``number`` takes every ``drivers``-th client."""

    number: int = 0
    drivers: int = 1

    def of(self, clients: Sequence[Any]) -> Sequence[Any]:
        """Return the shard's part of the clients."""
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
    """Write the records of all drivers into ``folder``, by our clock; nothing if there was one.

    ``time_scale`` are the run's seconds in one of a clock. Done again, it writes the same.
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
