"""Functions that read files of measured runs and recognise the kind of run."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from fairbench.errors import DataError, printable
from fairbench.files.formats import FilePlace, json_file, json_lines


class Kind(Enum):
    """A kind of measured run, with the fields by which it is recognised."""

    SERVING = ("run_id", "columns")
    PROGRAMS = ("program_latencies_s",)
    SLORA = ("path", "req_time")


def kind_of(path: Path) -> Kind:
    """Return the kind of the first complete run in a file.

    Raises:
        DataError: the file cannot be read, or no record looks like a run.
    """
    records = [place.value for place in records_of(path)]
    if not records:
        raise DataError(f"{path}: holds no records")
    # Prefer a record with all fields of a ``Kind`` to a record with only the Kind's first field.
    for least in (None, 1):
        for record in records:
            for kind in Kind:
                if isinstance(record, dict) and all(key in record for key in kind.value[:least]):
                    return kind
    raise DataError(
        f"{path}: holds no measured runs: a run has the fields "
        + ", or ".join(" and ".join(map(repr, kind.value)) for kind in Kind)
    )


def records_of(path: Path) -> list[FilePlace]:
    """Return the records of a file that has one record per line, or a single JSON value."""
    places: list[FilePlace] = []
    try:
        places = list(json_lines(path, f"{path}"))
    except DataError:
        with suppress(DataError):
            return _listed(path)
        raise
    return _listed(path) if len(places) == 1 and isinstance(places[0].value, list) else places


def _listed(path: Path) -> list[FilePlace]:
    whole = json_file(path, f"{path}")
    records = whole if isinstance(whole, list) else [whole]
    return [
        FilePlace(f"{path}, record {number}", one) for number, one in enumerate(records, start=1)
    ]


def name_of(record: Any) -> str:
    """Return the name of a record's run, or "(no run_id)" if the record has no readable name."""
    name = record.get("run_id") if isinstance(record, dict) else None
    return printable(name) if isinstance(name, str) else "(no run_id)"
