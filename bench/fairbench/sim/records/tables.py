"""Tables: from the logs of a simulation to what metrics read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairbench.core import PS_PER_S
from fairbench.metrics.records import Floats, Ints, Programs, Requests, Service
from fairbench.metrics.tables import Tables
from fairbench.sim.records.columns import Columns
from fairbench.sim.sequence import NEVER


class Logs(NamedTuple):
    """What a simulation wrote down, by the names under which it is saved."""

    requests: Columns
    programs: Columns
    service: Columns


def tables_of(clients: list[str], logs: Logs) -> Tables:
    """The tables of a settled cluster, in order of their ids, service by start and worker.

    The logs cannot be read afterwards: a long run fills memory once, not twice.
    """
    for log in logs:
        log.file_block()  # all of them, so that what is on disk is complete
    requests, programs, service = logs
    by_request = np.argsort(requests.column("request_id"))
    by_program = np.argsort(programs.column("program_id"))
    # Workers write a stretch down when it is over, whoever began first.
    by_start = np.lexsort((service.column("worker"), _seconds(service.column("start_ps"))))
    return Tables(
        clients,
        Requests.from_columns(_arrays(requests, by_request)),
        Programs.from_columns(_arrays(programs, by_program)),
        Service.from_columns(_arrays(service, by_start)),
    )


def _arrays(log: Columns, order: Ints) -> dict[str, Any]:
    """The columns in this order, ``*_ps`` as ``*_s``. The log is no more to be read."""
    arrays: dict[str, Any] = {}
    for name in log.names:
        values = log.column(name)[order]
        if name.endswith("_ps"):
            arrays[name.removesuffix("_ps") + "_s"] = _seconds(values)
        else:
            arrays[name] = values
    log.release()
    return arrays


def _seconds(times_ps: Ints) -> Floats:
    """Picoseconds in seconds, NaN for never."""
    seconds: Floats = times_ps / PS_PER_S
    seconds[times_ps == NEVER] = np.nan
    return seconds
