"""The format of a trace: what every file of ``formats/`` provides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from fairbench.files.json_text import Place
from fairbench.workloads.traces.rows import Row

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a user says of a file: ``names`` the columns of fields, ``line`` which of its runs."""

    names: Mapping[str, str] = field(default_factory=dict)
    line: int = 0


class PlacedRow(NamedTuple):
    """A row, None for one to be left out, and where it stands: ``FILE, line 3``."""

    where: str
    row: Row | None


class Format(Protocol):
    """One way to write a trace: JSON objects, or rows of CSV as objects of texts.

    ``fits``: whether a file that begins with this object is in it. ``rows`` raises DataError naming
    place and field; rows need not be in order of time.
    """

    @property
    def name(self) -> str: ...

    def fits(self, first: Record) -> bool: ...

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]: ...
