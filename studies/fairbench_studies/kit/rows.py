"""Functions that read and write CSV rows, and paths of the repository."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
TABLES = ROOT / "results" / "tables"

Row = Mapping[str, str]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file as dictionaries keyed by column name."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_cells(path: Path) -> list[list[str]]:
    """Return the cells of a CSV file row by row, including the header. Headings may repeat."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, which must all have the same keys, as a CSV file.

    Floating-point numbers have 6 significant digits.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        for row in rows:
            writer.writerow([_cell(row[name]) for name in rows[0]])


def stored_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, or no rows if the file does not exist yet."""
    return read_rows(path) if path.exists() else []


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a CSV file. If the file is new, write the header first."""
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(row)
        writer.writerow(_cell(value) for value in row.values())


def extend_rows(
    path: Path,
    identity: Sequence[str],
    points: Iterable[Sequence[Any]],
    measured: Callable[..., Mapping[str, Any]],
) -> None:
    """Measure the points that a CSV file lacks, and append each row as soon as it is measured.

    Each point is a sequence with one value per column in ``identity``. ``measured`` is called with
    the point's values, and returns the point's row.
    """
    known = {tuple(row[name] for name in identity) for row in stored_rows(path)}
    for point in points:
        if tuple(str(_cell(value)) for value in point) not in known:
            append_row(path, measured(*point))


def _cell(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
