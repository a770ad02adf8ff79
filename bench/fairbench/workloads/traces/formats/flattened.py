"""Logs whose records hold the needed fields in nested objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairbench.files.json_text import Place
from fairbench.workloads.traces.columns import Columns
from fairbench.workloads.traces.format import Asked, PlacedRow, Record
from fairbench.workloads.traces.missing import OWN
from fairbench.workloads.traces.names import FIELDS

FOUND = {field: f"{OWN}{field}" for field in FIELDS}
"""Names of fields beside the record's own keys, which ``--map`` can name."""


@dataclass(frozen=True)
class Flattened:
    """A format of nested records.

    ``requests`` yields what a record holds: of each request the known ones of ``FIELDS``, with
    other keys that a user may name, or None for a request that is left out.
    """

    name: str
    recognise: Callable[[Record], bool]
    requests: Callable[[Record], Iterator[Mapping[str, Any] | None]]

    def fits(self, first: Record) -> bool:
        return self.recognise(first)

    def rows(self, records: Iterator[Place], asked: Asked) -> Iterator[PlacedRow]:
        columns = Columns(asked, FOUND)
        for where, record in records:
            for number, found in enumerate(self.requests(record), start=1):
                place = where if number == 1 else f"{where}, request {number}"
                if found is None:
                    yield PlacedRow(place, None)
                    continue
                own = {key: found.get(field) for field, key in FOUND.items()}
                yield PlacedRow(place, columns.row({**record, **found, **own}, place))
        columns.check_named()


def inner(value: Any, *keys: str) -> Any:
    """Return the value under nested keys, None if there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def first_given(*values: Any) -> Any:
    """Return the first value that is present and not empty."""
    return next((value for value in values if value not in (None, "", [], {})), None)
