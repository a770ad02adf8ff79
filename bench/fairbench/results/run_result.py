"""The result of a run: its tables, its summary, and whether it came to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunResult:
    """Raw tables (column name -> values), the summary, and whether the run came to its end.

    ``about`` is what its manifest says besides.
    """

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: Mapping[str, Any]
    summary: dict[str, Any]
    complete: bool
    about: dict[str, Any] = field(default_factory=dict)

    def tables(self) -> dict[str, Mapping[str, Any]]:
        """The tables by the names under which they are saved."""
        return {"requests": self.requests, "programs": self.programs, "service": self.service}
