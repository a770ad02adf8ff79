"""Tables: from the logs of a simulation to what metrics read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairbench.metrics.arrays import is_long
from fairbench.metrics.records import Ints, Programs, Requests, Service
from fairbench.metrics.tables import Memory, ServiceLog, Tables
from fairbench.sim.records.columns import Columns
from fairbench.sim.records.filed import filed_service
from fairbench.sim.records.seconds import seconds
from fairbench.sim.records.spool import FileBlocks


class Logs(NamedTuple):
    """The logs of a simulation, by the names under which they are saved."""

    requests: Columns
    programs: Columns
    service: Columns
    memory: Columns | None = None

    def by_name(self) -> dict[str, Columns]:
        """Return the existing logs by name."""
        return {name: log for name, log in self._asdict().items() if log is not None}


def tables_of(clients: list[str], logs: Logs) -> Tables:
    """Return a settled cluster's tables in order of ids, and service by start and worker.

    The logs cannot be read afterwards: a long run fills memory once, not twice.
    """
    for log in logs.by_name().values():
        log.file_block()  # all of them, so that what is on disk is complete
    requests, programs, service, memory = logs
    by_request = np.argsort(requests.column("request_id"))
    by_program = np.argsort(programs.column("program_id"))
    return Tables(
        clients,
        Requests.from_columns(_arrays(requests, by_request)),
        Programs.from_columns(_arrays(programs, by_program)),
        _service(service),
        None if memory is None else Memory.from_columns(_arrays(memory, None)),
    )


def _service(log: Columns) -> ServiceLog:
    """Return the service table, kept in files if the log is filed and long."""
    if isinstance(log.blocks, FileBlocks) and is_long(len(log)):
        return filed_service(log, log.blocks)
    # Workers write a stretch down when it is over, whoever began first.
    start_s, worker = seconds(log.column("start_ps")), log.column("worker")
    sorted_already = (start_s[1:] >= start_s[:-1]).all() and (worker == worker[:1]).all()
    by_start = None if sorted_already else np.lexsort((worker, start_s))
    return Service.from_columns(_arrays(log, by_start))


def _arrays(log: Columns, order: Ints | None) -> dict[str, Any]:
    """Return the columns in ``order``, or unsorted if None, with ``*_ps`` as ``*_s``.

    The log cannot be read afterwards.
    """
    arrays: dict[str, Any] = {}
    for name in log.names:
        values = log.column(name)
        values = values if order is None else values[order]
        if name.endswith("_ps"):
            arrays[name.removesuffix("_ps") + "_s"] = seconds(values)
        else:
            arrays[name] = values
    log.release()
    return arrays
