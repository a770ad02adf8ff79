"""The three tables of a run, however it was run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from fairbench.metrics.arrow import named
from fairbench.metrics.records import REFUSED, STATUS_NAMES, Programs, Requests, Service, Table


class SavedColumns(NamedTuple):
    """The columns of each table as they are saved: clients and states by name."""

    requests: dict[str, Any]
    programs: dict[str, Any]
    service: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """Requests, programs and service log of a run; clients are indices into ``clients``."""

    clients: list[str]
    requests: Requests
    programs: Programs
    service: Service

    def all_refused(self) -> bool:
        """Whether there were requests and every one was refused."""
        status = self.requests.status
        return len(status) > 0 and bool((status == REFUSED).all())

    def columns(self) -> SavedColumns:
        """What is saved of the tables."""
        return SavedColumns(*map(self._saved, (self.requests, self.programs, self.service)))

    def _saved(self, table: Table) -> dict[str, Any]:
        columns: dict[str, Any] = dict(table.to_columns())
        columns["client"] = named(columns["client"], self.clients)
        if "status" in columns:
            columns["status"] = named(columns["status"], STATUS_NAMES)
        return columns
