"""``fairbench validate`` for runs of the DLPM authors' own benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairbench.hardware.catalogue import named_profile
from fairbench_studies.validation.programs.measured import ProgramRun, read_programs
from fairbench_studies.validation.report import Report, each

if TYPE_CHECKING:
    from fairbench_studies.validation.programs.compare import ProgramComparison


def validate_programs(file: Path, profile: str | None, output_dir: Path | None) -> Report:
    """Replay and compare the runs of a file, and write ``validation.json`` if requested."""
    from fairbench.results.store import write_json
    from fairbench_studies.validation.programs.compare import programs_text

    if profile is not None:
        named_profile(profile)
    read, unread = read_programs(file)
    runs, failed = each(
        lambda run: _compared(run, profile), read, lambda run: run.name, replayed=True
    )
    report = Report(
        {"programs": [run.as_dict() for run in runs]}, programs_text(runs), [*unread, *failed]
    )
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / "validation.json", report.as_dict())
        typer.echo(f"fairbench: written to {output_dir}", err=True)
    return report


def _compared(run: ProgramRun, profile: str | None) -> ProgramComparison:
    from fairbench_studies.validation.programs.compare import compare_programs
    from fairbench_studies.validation.programs.replay import replay

    simulated, used = replay(run, None if profile is None else named_profile(profile))
    return compare_programs(run, simulated, used)
