"""The format of a trace: what every file of ``formats/`` provides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

from fairbench.files.json_text import Place
from fairbench.workloads.traces.rows import Row
from fairbench.workloads.traces.trace import Trace

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a user says of a file: ``names`` the columns of fields, ``line`` which of its runs.

    ``block_size`` is how many tokens a block has, 0 if file or format say it.
    ``notes`` are what reading it found out: ``unit``, that of its times.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    line: int = 0
    notes: dict[str, str] = field(default_factory=dict)
    block_size: int = 0


class PlacedRow(NamedTuple):
    """A row, None for one to be left out, and where it stands: ``FILE, line 3``."""

    where: str
    row: Row | None


class Known(Protocol):
    """One way to write a trace: JSON objects, or rows of CSV as objects of texts.

    ``fits``: whether a file that begins with this object is in it.
    """

    @property
    def name(self) -> str: ...

    def fits(self, first: Record) -> bool: ...


@runtime_checkable
class Measured(Known, Protocol):
    """A format that tells of rates and lengths, from which requests are drawn."""

    def trace(self, records: Iterator[Place], asked: Asked) -> Trace:
        """Raises DataError naming place and field."""
        ...


class Format(Known, Protocol):
    """A format that has every request. ``rows`` raises DataError naming place and field.

    They need not be in order of time.
    """

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]: ...
