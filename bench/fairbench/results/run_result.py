"""The result of a run: its tables, its summary, and whether it came to its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairbench.metrics.arrow import named
from fairbench.metrics.records import REFUSED, Programs, Requests, ServiceLog

STATUS_NAMES = ("finished", "refused", "unfinished")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Raw tables (column name -> values), the summary, and whether the run came to its end."""

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: dict[str, Any]
    summary: dict[str, Any]
    complete: bool

    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables by the names under which they are saved."""
        return {"requests": self.requests, "programs": self.programs, "service": self.service}


@dataclass(frozen=True, slots=True)
class Tables:
    """The three tables of a run; clients are indices into ``clients``."""

    clients: list[str]
    requests: Requests
    programs: Programs
    service: ServiceLog

    def all_refused(self) -> bool:
        """Whether there were requests and every one was refused."""
        status = self.requests.status
        return len(status) > 0 and bool((status == REFUSED).all())

    def columns(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Requests, programs and service as columns to save: clients and states by name."""
        saved = []
        for table in (self.requests, self.programs, self.service):
            columns: dict[str, Any] = dict(table.to_columns())
            columns["client"] = named(columns["client"], self.clients)
            if "status" in columns:
                columns["status"] = named(columns["status"], STATUS_NAMES)
            saved.append(columns)
        return saved[0], saved[1], saved[2]
