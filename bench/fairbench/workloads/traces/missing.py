"""Error messages for a missing column, with the column that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairbench.errors import DataError, unknown_name
from fairbench.errors.printable import printable
from fairbench.errors.validation import shortened
from fairbench.files.column_names import nearest
from fairbench.workloads.traces.format import Record

OWN = "="
"""Begins the names under which a format puts fields that it has found itself."""


def no_column(field: str, taken: Iterable[str], record: Record, where: str) -> DataError:
    """Return the error for a field without a recognized column; ``taken`` are columns in use."""
    has = ", ".join(printable(str(one)) for one in list(record)[:12])
    values = (str(name) for name, value in record.items() if not isinstance(value, list | dict))
    near = nearest(field, set(values).difference(taken))
    hint = f" Did you mean {field}={printable(near)}?" if near else ""
    return DataError(
        f"{where}: no column for {field} (has {shortened(has)}): name it with "
        f"--map {field}=COLUMN.{hint}"
    )


def no_such_column(name: str, record: Record, where: str) -> DataError:
    """Return the error for a missing column that a user named; nested names list what exists.

    Args:
        name: Name of the missing column; dots lead into nested objects.
        record: Record in which the column is missing.
        where: Place of the record, for the message.
    """
    outer = name.partition(".")[0]
    inside = outer != name and isinstance(record.get(outer), Mapping)
    known = _leaves(record[outer], f"{outer}.") if inside else map(str, record)
    missing = unknown_name("column", name, (one for one in known if not one.startswith(OWN)))
    return DataError(f"{where}: {printable(str(missing))}")


def _leaves(value: Mapping[str, Any], before: str) -> Iterator[str]:
    """Yield the dotted names of all values in an object, at any depth."""
    for key, one in value.items():
        if isinstance(one, Mapping) and one:
            yield from _leaves(one, f"{before}{key}.")
        else:
            yield f"{before}{key}"
