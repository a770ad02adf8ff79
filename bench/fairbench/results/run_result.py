"""The result of a run: its tables, its summary, and whether it is complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairbench.results.store import MEMORY_TABLE


@dataclass(frozen=True, slots=True)
class RunResult:
    """Raw tables (column name -> values), the summary, and whether the run is complete.

    ``memory`` is the table of who held KV memory, None if that was not recorded. ``about`` is what
    its manifest says besides.
    """

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: Mapping[str, Any]
    summary: dict[str, Any]
    complete: bool
    memory: dict[str, Any] | None = None
    about: dict[str, Any] = field(default_factory=dict)

    def tables(self) -> dict[str, Mapping[str, Any]]:
        """Return the tables by the names under which they are saved."""
        tables = {"requests": self.requests, "programs": self.programs, "service": self.service}
        return tables if self.memory is None else {**tables, MEMORY_TABLE: self.memory}
