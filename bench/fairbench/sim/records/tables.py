"""Tables: from the logs of a simulation, in memory or filed on disk, to the input of metrics."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.core import PS_PER_S
from fairbench.metrics.arrays import is_long
from fairbench.metrics.records import Floats, Ints, Programs, Requests, Service
from fairbench.metrics.tables import FiledService, Memory, ServiceLog, Tables
from fairbench.sim.records.columns import Columns
from fairbench.sim.records.spool import FileBlocks
from fairbench.sim.sequence import NEVER


def seconds(times_ps: Ints) -> Floats:
    """Return times in seconds, NaN for never."""
    found: Floats = times_ps / PS_PER_S
    found[times_ps == NEVER] = np.nan
    return found


AT_ONCE = 16  # blocks converted together


def filed_service(log: Columns, blocks: FileBlocks) -> FiledService:
    """Return the rows sorted by start and worker, stored next to the file of their ``blocks``.

    Rows are filed when a stretch ends, so no row begins long before the rows filed earlier. Rows
    that begin before all remaining rows are written; the others are kept.
    """
    start = log.names.index("start_ps")
    least = np.array([rows[:, start].min(initial=2**62) for rows in blocks.groups(AT_ONCE)])
    after = np.append(np.minimum.accumulate(least[::-1])[::-1][1:], 2**62) / PS_PER_S
    kept = np.empty((0, len(log.names)), np.int64)
    types = FiledService.column_types()
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(FiledService.path(blocks.folder, name).open("wb"))
            for name in types
        }
        for rows, yet_s in zip(blocks.groups(AT_ONCE), after, strict=True):
            kept = np.concatenate([kept, rows])
            start_s = kept[:, start] / PS_PER_S
            now = start_s < yet_s
            out = kept[now]
            out = out[np.lexsort((out[:, log.names.index("worker")], start_s[now]))]
            for name, file in files.items():
                _column(out, log.names, name).astype(types[name]).tofile(file)
            kept = kept[~now]
    return FiledService(blocks.folder, len(log))


def _column(rows: NDArray[np.int64], names: tuple[str, ...], name: str) -> NDArray[np.generic]:
    """Return a column of ``Service``, with seconds computed from picoseconds."""
    if name in names:
        return rows[:, names.index(name)]
    return seconds(rows[:, names.index(name.removesuffix("_s") + "_ps")])


class Logs(NamedTuple):
    """The logs of a simulation, by the names under which they are saved."""

    requests: Columns
    programs: Columns
    service: Columns
    memory: Columns | None = None

    def by_name(self) -> dict[str, Columns]:
        return {name: log for name, log in self._asdict().items() if log is not None}


def tables_of(clients: list[str], logs: Logs) -> Tables:
    """Return a settled cluster's tables in order of ids, and service by start and worker.

    The logs cannot be read afterwards, so that a long run fills memory only once.
    """
    for log in logs.by_name().values():
        log.file_block()  # all rows, so that the files are complete
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
    # Workers record a stretch at its end, in any order of starts.
    start_s, worker = seconds(log.column("start_ps")), log.column("worker")
    sorted_already = (start_s[1:] >= start_s[:-1]).all() and (worker == worker[:1]).all()
    by_start = None if sorted_already else np.lexsort((worker, start_s))
    return Service.from_columns(_arrays(log, by_start))


def _arrays(log: Columns, order: Ints | None) -> dict[str, Any]:
    """Return a log's columns in ``order`` (None: as they are), seconds for ``*_ps``; release it."""
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
