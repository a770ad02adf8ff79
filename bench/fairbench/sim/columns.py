"""A table of integers that is filled row by row and read column by column."""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS_PER_BLOCK = 8_192


class Columns:
    """A table of integers with named columns, filled row by row.

    Rows are packed as they come. Full blocks of them are kept column by column, in the narrowest
    integers that hold the values, which takes half the memory.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._pack = Struct(f"{len(names)}q").pack
        self._block = bytearray()
        self._block_bytes = ROWS_PER_BLOCK * 8 * len(names)
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def append(self, *row: int) -> None:
        """Add one row, values in column order."""
        self._block += self._pack(*row)
        self._rows += 1
        if len(self._block) == self._block_bytes:
            self._file_block()

    def column(self, name: str) -> NDArray[np.int64]:
        """A copy of one column."""
        self._file_block()
        parts = self._parts[name]
        return np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64)

    def clear(self) -> None:
        """Forget every row."""
        self._rows = 0
        self._block = bytearray()
        for parts in self._parts.values():
            parts.clear()

    def _file_block(self) -> None:
        """Move the rows of the block into the columns."""
        if not self._block:
            return
        rows = np.frombuffer(self._block, np.int64).reshape(-1, len(self.names))
        for name, values in zip(self.names, rows.T, strict=True):
            self._parts[name].append(values.astype(_narrowest(values)))
        self._block = bytearray()


def _narrowest(values: NDArray[np.int64]) -> type[np.signedinteger[Any]]:
    """The smallest type that holds all of them."""
    low, high = values.min(), values.max()
    for narrow in (np.int8, np.int16, np.int32):
        if np.iinfo(narrow).min <= low and high <= np.iinfo(narrow).max:
            return narrow
    return np.int64
