"""The service log as metrics read it, part by part, from memory or from files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fairbench.metrics.arrays import part_bounds
from fairbench.metrics.records import Service

COLUMN_BYTES = 8  # of a row


class ServiceLog(Protocol):
    """Rows of ``Service``."""

    def __len__(self) -> int: ...

    def parts(self) -> Iterator[Service]:
        """Yield all rows in order; the rows of a stretch stay together."""
        ...

    def between(self, first: int, after: int) -> Service:
        """Return the rows from ``first`` up to ``after``, at least one."""
        ...


@dataclass(frozen=True, slots=True)
class FiledService:
    """A ``ServiceLog`` of ``rows`` in order of time. It has one file per column in ``folder``.

    What is read of it is mapped and not copied, and leaves memory with whoever has read it.
    """

    folder: Path
    rows: int

    def __len__(self) -> int:
        return self.rows

    def parts(self) -> Iterator[Service]:
        """Yield the parts that this log would have in memory."""
        for first, after in pairwise(part_bounds(self._column("start_s", 0, self.rows))):
            yield self.between(first, after)

    def between(self, first: int, after: int) -> Service:
        """Return the rows from ``first`` up to ``after``, at least one."""
        columns = self.column_types()
        return Service(**{name: self._column(name, first, after) for name in columns})

    @staticmethod
    def column_types() -> Mapping[str, type]:
        """Return the types of the stored columns, by name."""
        return {
            one.name: np.int64 if str(one.type).startswith("Ints") else np.float64
            for one in fields(Service)
        }

    @staticmethod
    def path(folder: Path, column: str) -> Path:
        """Return the file of a column."""
        return folder / f"service.{column}"

    def _column(self, name: str, first: int, after: int) -> Any:
        return np.asarray(
            np.memmap(
                self.path(self.folder, name),
                dtype=self.column_types()[name],
                mode="r",
                offset=COLUMN_BYTES * first,
                shape=(after - first,),
            )
        )
