"""Files of measured runs of programs: one JSON list, or one run per line."""

from __future__ import annotations

from pathlib import Path

from fairbench_studies.validation.programs.measured import ProgramRun, program_run
from fairbench_studies.validation.records import name_of, records_of
from fairbench_studies.validation.report import NotReplayed, each, unique


def read_programs(path: Path) -> tuple[list[ProgramRun], list[NotReplayed]]:
    """Read all readable runs of the file, and the reasons for the others.

    Raises:
        DataError: the file is no JSON, or no run can be read.
    """
    read, failed = each(
        lambda place: program_run(place.value, place.where),
        records_of(path),
        lambda place: name_of(place.value),
    )
    runs, repeated = unique(read, lambda run: run.name)
    return runs, [*failed, *repeated]
