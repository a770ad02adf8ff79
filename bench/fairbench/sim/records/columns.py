"""A table of integers that is filled row by row and read column by column."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fairbench.compiled import mypyc_attr

ROWS_PER_BLOCK = 8_192


class Blocks(Protocol):
    """The storage of a table's rows in blocks. Columns are numbered from 0."""

    def add(self, rows: NDArray[np.int64]) -> None:
        """Append a block: an array of rows, which may be empty."""

    def column(self, number: int) -> NDArray[np.int64]:
        """Return a copy of one column of all blocks."""

    def release(self) -> None:
        """Free the memory of the blocks, which cannot be read afterwards."""


class MemoryBlocks:
    """Blocks by column in the narrowest integers that fit, which halves the memory."""

    def __init__(self, columns: int) -> None:
        self.parts: list[list[NDArray[Any]]] = [[] for _ in range(columns)]

    def add(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            for part, values in zip(self.parts, rows.T, strict=True):
                part.append(values.astype(_narrowest(values)))

    def column(self, number: int) -> NDArray[np.int64]:
        part = self.parts[number]
        return np.concatenate(part, dtype=np.int64) if part else np.empty(0, np.int64)

    def release(self) -> None:
        self.parts.clear()


@mypyc_attr(allow_interpreted_subclasses=True)
class Columns:
    """A table of integers with named columns, filled row by row.

    Rows are packed as they come; a full block of them goes to ``blocks``. ``on_full`` moves it.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.blocks: Blocks = MemoryBlocks(len(names))
        self.on_full: Callable[[], None] | None = None  # called in place of file_block
        self.pack = Struct(f"{len(names)}q").pack
        self._block = bytearray()
        self._row_bytes = 8 * len(names)
        self._block_bytes = ROWS_PER_BLOCK * self._row_bytes
        self._bytes_apart = 0  # bytes of rows that a subclass keeps in another form
        self._filed = 0

    def __len__(self) -> int:
        return self._filed + (len(self._block) + self._bytes_apart) // self._row_bytes

    def append(self, *row: int) -> None:
        """Add one row. Its values must be in the order of the columns."""
        self.extend(self.pack(*row))

    def extend(self, packed: bytes) -> None:
        """Add consecutive rows that ``pack`` has packed."""
        self._block += packed
        if len(self._block) + self._bytes_apart >= self._block_bytes:
            (self.on_full or self.file_block)()

    def column(self, name: str) -> NDArray[np.int64]:
        if self._block or self._bytes_apart:
            self.file_block()
        return self.blocks.column(self.names.index(name))

    def file_block(self) -> None:
        """Move the collected rows into a block."""
        self.add_block(self._rows())
        self._block, self._bytes_apart = bytearray(), 0

    def _rows(self) -> NDArray[np.int64]:
        return np.frombuffer(self._block, np.int64).reshape(-1, len(self.names))

    def add_block(self, rows: NDArray[np.int64]) -> None:
        self.blocks.add(rows)
        self._filed += len(rows)

    def release(self) -> None:
        """Free the memory of the rows, which cannot be read afterwards."""
        self.blocks.release()


def _narrowest(values: NDArray[np.int64]) -> type[np.signedinteger[Any]]:
    """Return the smallest type that holds all values."""
    low, high = values.min(), values.max()
    for narrow in (np.int8, np.int16, np.int32):
        if np.iinfo(narrow).min <= low and high <= np.iinfo(narrow).max:
            return narrow
    return np.int64
