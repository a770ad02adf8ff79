"""The interface of formats of programs, which ``formats/`` implements, and of traces as read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

from fairbench.files.json_text import Place
from fairbench.records.layout import Record
from fairbench.workloads.items import Recorded
from fairbench.workloads.traces.rows import Row
from fairbench.workloads.traces.table import Table


class TracedProgram(NamedTuple):
    """A recorded program and its time, in seconds from the beginning of the trace."""

    at_s: float
    item: Recorded


class Trace(Protocol):
    """The traffic of a file, by client.

    ``synthetic`` are the parts that were not recorded, as the file states. ``drawn`` means that its
    times and lengths are drawn for each seed, from measurements. ``pauses`` means that a program
    has several calls, with time between them. ``left_out`` requests of the file are not in the
    trace; ``who_left_out`` describes them.
    """

    clients: tuple[str, ...]
    span_s: float
    drawn: bool
    synthetic: tuple[str, ...]
    pauses: bool
    left_out: int
    who_left_out: str

    def programs(self, client: int, rng: random.Random, speed: float) -> Iterator[TracedProgram]:
        """Yield a client's programs in time order, with all times divided by ``speed``."""
        ...

    def count(self, client: int, until_s: float) -> float:
        """Return the number of programs that a client begins before a time, or an estimate."""
        ...

    def table(self, seed: int, until_s: float = inf) -> Table:
        """Return the requests, at least those before a time; the seed draws random parts."""
        ...


@dataclass(frozen=True)
class Asked:
    """The user's columns for a file of another format than records of requests.

    ``notes`` are findings while reading: ``unit`` is the unit of the file's times.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class Known(Protocol):
    """A trace format of JSON objects.

    ``fits`` returns whether a file that begins with this object has the format.
    """

    @property
    def name(self) -> str: ...

    def fits(self, first: Record) -> bool: ...


@runtime_checkable
class Measured(Known, Protocol):
    """A format with rates and lengths, from which requests are drawn."""

    def trace(self, records: Iterator[Place], asked: Asked) -> Trace:
        """Return the trace of a file's records. Raises DataError naming location and field."""
        ...


class Format(Known, Protocol):
    """A format of programs. ``rows`` raises DataError with location and field.

    A row is None for a request that is left out. The rows need not be in order of time.
    """

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[Row | None]: ...
