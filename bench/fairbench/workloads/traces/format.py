"""The interface of trace formats, which ``formats/`` implements, and of traces as read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fairbench.files.json_text import Place
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


Record = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """The user's options for a file: ``names`` maps columns, ``line`` selects a run.

    ``block_size`` is the number of tokens of a block, 0 if the file or format gives it. ``notes``
    are findings while reading: ``unit`` is the unit of the file's times, ``zone`` their UTC offset.
    ``nameless`` is true if no column has clients, ``cached`` names the column of cached tokens that
    are not replayed.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    line: int = 0
    notes: dict[str, str] = field(default_factory=dict)
    block_size: int = 0


class PlacedRow(NamedTuple):
    """A row (None if it is left out) with its location, such as ``FILE, line 3``."""

    where: str
    row: Row | None


class Known(Protocol):
    """A trace format of JSON objects, or of CSV rows as dicts of strings.

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
    """A format that lists every request. ``rows`` raises DataError with location and field.

    The rows need not be in order of time.
    """

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]: ...
