"""A file with one request a line, CSV or JSON, whose columns are recognized by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fairbench.files.json_text import Place
from fairbench.workloads.traces.columns import Columns
from fairbench.workloads.traces.format import Asked, PlacedRow, Record


@dataclass(frozen=True)
class Plain:
    """A format of one record a request.

    It is known by the columns in ``needs`` and by whether cells are texts, as those of CSV are;
    ``usual`` are its own names of fields that do not have a common one, ``unit`` is that of its
    times where their names do not say it, ``block_size`` how many tokens a block of prompts has.
    """

    name: str
    texts: bool | None = None
    needs: tuple[str, ...] = ()
    usual: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    block_size: int = 0

    def fits(self, first: Record) -> bool:
        texts = all(isinstance(value, str) for value in first.values())
        return (self.texts is None or texts is self.texts) and set(self.needs) <= set(first)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        columns = Columns(asked, self.usual, unit=self.unit, block_size=self.block_size)
        yield from columns.rows(records)


CSV = Plain("csv", texts=True)
JSON_LINES = Plain("jsonl")
