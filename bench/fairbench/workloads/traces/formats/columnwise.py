"""Files that hold a whole run in one object, with a list for each field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.errors import DataError, UsageError
from fairbench.files.json_text import Place
from fairbench.workloads.traces.columns import Columns
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.names import NEEDED


@dataclass(frozen=True)
class Columnwise:
    """A format with one run per object. ``usual`` maps fields to lists, in seconds.

    ``inside`` is the key of the object that the lists are in, empty if they are the run's own.
    """

    name: str
    usual: Mapping[str, str] = field(default_factory=dict)
    inside: str = ""

    def fits(self, first: Record) -> bool:
        lists = self._lists(first)
        return all(isinstance(lists.get(self.usual[name]), list) for name in NEEDED)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        """Yield the rows of the requested run, or of the only run."""
        where, chosen = _chosen(records, asked.line)
        run = self._lists(chosen)
        wanted = {**self.usual, **asked.names}
        lists = {name: run[name] for name in wanted.values() if isinstance(run.get(name), list)}
        if len({len(one) for one in lists.values()}) > 1:
            raise DataError(f"{where}: {', '.join(lists)}: must be lists of the same length")
        for name in NEEDED:
            if wanted[name] not in lists:
                raise DataError(f"{where}: {wanted[name]}: must be a list")
        columns = Columns(asked, self.usual, unit="s")
        for number, values in enumerate(zip(*lists.values(), strict=True), start=1):
            place = f"{where}, request {number}"
            record: dict[str, Any] = dict(zip(lists, values, strict=True))
            yield PlacedRow(place, columns.row(record, place))
        columns.check_named()

    def _lists(self, run: Record) -> Record:
        """Return the object that holds the lists."""
        found = run.get(self.inside) if self.inside else run
        return found if isinstance(found, Mapping) else {}


def _chosen(records: Iterator[Place], line: int) -> Place:
    """Return the record on a line, from 1. Raises UsageError if the choice is ambiguous."""
    for number, record in enumerate(records, start=1):
        if number == (line or 1):
            if not line and next(records, None) is not None:
                raise UsageError(
                    f"{record.where}: the file holds several runs; choose one with --trace-line N"
                )
            return record
    raise UsageError(
        f"--trace-line {line}: must be at most {number}, the number of runs in the file"
    )
