"""The outcome of a live run: its result from the records, also for a killed run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairbench.config import ExperimentSpec
from fairbench.errors import DataError
from fairbench.files.json_text import json_file
from fairbench.files.reader import MissingFile
from fairbench.live.backends.base import Served
from fairbench.live.driver.drive import DriveResult
from fairbench.live.driver.shards import merge, told
from fairbench.live.records import FINISHED, LiveRecords, read_records, tables_of
from fairbench.live.sent_names import time_scale_of
from fairbench.live.summary import summary_of
from fairbench.metrics.tables import RunResult

SERVED_FILE = "served.json"


def write_served(folder: Path, served: Served) -> None:
    """Store the description of the server with the records of the run."""
    (folder / SERVED_FILE).write_bytes(msgspec.json.encode(served) + b"\n")


def outcome(
    spec: ExperimentSpec,
    folder: Path,
    driven: DriveResult,
    served: Served,
    *,
    ended: Sequence[str] = (),
    broken: str = "",
    remarks: Mapping[str, str] | None = None,
) -> RunResult:
    """Return the result of the records in ``folder``.

    ``ended`` are workers that died during the run, and ``broken`` is the reason why it had to end.
    A run with either, or in which no request succeeded, is incomplete; a note says why. ``remarks``
    are notes by key.
    """
    records = read_records(folder)
    tables = tables_of(records, [plan.client for plan in spec.client_plans()])
    summary = summary_of(spec, records, tables, driven, served)
    notes = summary["notes"]
    notes |= remarks or {}
    if ended:
        notes["workers"] = f"{', '.join(ended)} ended during the run"
    if broken:
        lost = sum(request.status != FINISHED for request in records.requests)
        notes["complete"] = (
            f"{broken}; {lost} requests have no complete answer, and no more requests were sent"
        )
    elif driven.complete and records.requests and not summary["completed"]:
        notes["complete"] = f"no request succeeded ({notes.get('errors', 'none was answered')})"
    summary["complete"] = driven.complete and "complete" not in notes
    about: dict[str, Any] = {"hosts": list(served.hosts)} if served.hosts else {}
    if served.async_scheduling is not None:
        about["async_scheduling"] = served.async_scheduling
    if drivers := told(folder):
        about["drivers"] = drivers
    return RunResult(*tables.columns()[:3], summary, summary["complete"], about=about)


def recover(spec: ExperimentSpec, folder: Path) -> RunResult:
    """Return the result of a killed run. Raises DataError if its records cannot be read."""
    path = folder / SERVED_FILE
    try:
        served = msgspec.convert(json_file(path, f"{path}"), Served)
    except MissingFile:
        raise DataError(
            f"{folder}: the servers of this run did not become ready, so there are no results"
        ) from None
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: {error}") from None
    merge(folder, time_scale_of(spec))
    return outcome(spec, folder, recovered(read_records(folder)), served)


def recovered(records: LiveRecords) -> DriveResult:
    """Return the end of a run known only from its records: incomplete, ending with the last one.

    Requests and programs in progress are not in the records.
    """
    arrivals = [program.arrival_s for program in records.programs]
    ends = [program.finish_s for program in records.programs]
    ends += [request.finish_s for request in records.requests]
    return DriveResult(
        complete=False,
        end_s=max([*arrivals, *(end_s for end_s in ends if end_s is not None)], default=0.0),
        last_arrival_s=max(arrivals, default=0.0),
    )
