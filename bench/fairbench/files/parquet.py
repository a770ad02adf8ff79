"""Parquet files of users: columns of numbers, booleans and texts, within a memory limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.errors import DataError
from fairbench.files.reader import Memory, opened

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 16_384


def read_parquet(path: Path, *, any_type: bool = False) -> pa.Table:
    """Return the table in a file; text columns are dictionaries.

    ``any_type`` allows lists, objects and dates, too. Raises DataError if the file is unreadable or
    too large, or has a column of another type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shown, memory = f"{path}", Memory(f"{path}")
    with opened(path, shown) as file:  # pyarrow itself takes no path that is not UTF-8
        try:
            texts = _texts(pq.read_schema(file), shown, any_type=any_type)
            file.seek(0)
            found = pq.ParquetFile(file, read_dictionary=texts)
            _check_declared(found.metadata, memory)
            batches = []
            for batch in found.iter_batches(BATCH_ROWS, use_threads=False):
                memory.take(batch.nbytes)
                batches.append(batch)
            return pa.Table.from_batches(batches, found.schema_arrow)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"{shown}: cannot be read: {(str(error) or type(error).__name__).splitlines()[0]}"
            ) from None


def _texts(schema: pa.Schema, shown: str, *, any_type: bool) -> list[str]:
    """Return the names of the text columns. Raises DataError for a column of unsupported type."""
    from pyarrow import types

    names = []
    for field in schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_string(kind) or types.is_large_string(kind):
            names.append(field.name)
        elif any_type or types.is_null(kind):
            # the type of a column without any known value, such as a metric that no run has
            continue
        elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise DataError(
                f"{shown}: column {field.name!r} is of type {kind}: must hold numbers or texts"
            )
    return names


def _check_declared(metadata: Any, memory: Memory) -> None:
    """Raise DataError if the file declares more than fits into memory."""
    declared = metadata.num_rows * metadata.num_columns
    for number in range(metadata.num_row_groups):
        declared += metadata.row_group(number).total_byte_size
    if declared > memory.limit or metadata.num_rows < 0:
        raise memory.too_large()
