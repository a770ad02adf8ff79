"""Files of measured runs of programs: one JSON list, or one run per line."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from fairbench.errors import DataError
from fairbench.files.json_text import Place, json_file, json_lines
from fairbench_studies.validation.programs.measured import ProgramRun, is_program_run, program_run
from fairbench_studies.validation.report import NotReplayed, each


def holds_program_runs(path: Path) -> bool:
    """Return whether the first record of a file is a run of programs."""
    with suppress(DataError):
        return bool(records := _records(path)) and is_program_run(records[0].value)
    return False


def read_programs(path: Path) -> tuple[list[ProgramRun], list[NotReplayed]]:
    """Read all readable runs of the file, and the reasons for the others.

    Raises:
        DataError: the file is no JSON, two runs share a name, or no run can be read.
    """
    runs, failed = each(
        lambda place: program_run(_object(place), place.where),
        _records(path),
        lambda place: _name(place.value),
    )
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            raise DataError(f"{path}: two runs have the name {run.name!r}; rename one")
    return runs, failed


def _records(path: Path) -> list[Place]:
    """Return the records of a file: one per line, or of its single JSON value."""
    places: list[Place] = []
    with suppress(DataError):
        places = list(json_lines(path, f"{path}"))
    if not places or isinstance(places[0].value, list):
        whole = json_file(path, f"{path}")
        records = whole if isinstance(whole, list) else [whole]
        return [Place(f"{path}, record {place}", one) for place, one in enumerate(records, start=1)]
    return places


def _object(place: Place) -> dict[str, Any]:
    if not is_program_run(place.value):
        raise DataError(f"{place.where}: missing field 'program_latencies_s'")
    value: dict[str, Any] = place.value
    return value


def _name(record: Any) -> str:
    name = record.get("run_id") if isinstance(record, dict) else None
    return name if isinstance(name, str) else "(no run_id)"
