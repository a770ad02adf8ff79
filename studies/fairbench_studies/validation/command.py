"""``fairbench validate FILE``: replay measured runs in the simulator, and compare the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from fairbench.cli.output import print_json
from fairbench.errors import UsageError
from fairbench_studies.validation.overview.command import overview
from fairbench_studies.validation.programs.command import validate_programs
from fairbench_studies.validation.records import Kind, kind_of
from fairbench_studies.validation.report import Report
from fairbench_studies.validation.serving.command import (
    predict_serving,
    print_serving_fit,
    validate_serving,
)
from fairbench_studies.validation.slora.command import print_replay_fit, validate_replay


def validate(
    file: Path,
    crosschecks: Path | None,
    output_dir: Path | None,
    profile: str | None,
    pool: int | None,
    *,
    as_json: bool,
) -> None:
    """Compare a file's measured runs with replays; exit with code 1 if a run cannot be replayed."""
    _print(_compare(file, crosschecks, output_dir, profile, pool), as_json=as_json)


def validate_all(
    files: Sequence[Path], output_dir: Path | None, profile: str | None, *, as_json: bool
) -> None:
    """Compare each file's measured runs with replays. Print tables, or JSON keyed by file name."""
    if any(file.is_dir() for file in files):
        raise UsageError("the directory of a run cannot be combined with other FILEs")
    reports: dict[str, Report] = {}
    for file in files:
        folder = None if output_dir is None else output_dir / file.name.split(".")[0]
        reports[str(file)] = _compare(file, None, folder, profile, None)
    if as_json:
        print_json({"files": {name: report.as_dict() for name, report in reports.items()}})
    else:
        typer.echo("\n".join(f"{name}\n{one.as_text()}" for name, one in reports.items()), nl=False)
    if any(report.not_replayed for report in reports.values()):
        raise typer.Exit(1)


def print_overview(
    paths: Sequence[Path], output_dir: Path | None, profile: str | None, *, as_json: bool
) -> None:
    """Print one table of all measured runs; exit with code 1 if a run cannot be replayed."""
    _print(overview(paths, output_dir, profile), as_json=as_json)


def _print(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_dict())
    else:
        typer.echo(report.as_text(), nl=False)
    if report.not_replayed:
        raise typer.Exit(1)


def _compare(
    file: Path,
    crosschecks: Path | None,
    output_dir: Path | None,
    profile: str | None,
    pool: int | None,
) -> Report:
    kind = kind_of(file)
    if kind is Kind.SLORA:
        return validate_replay(file, crosschecks, output_dir, profile, pool)
    if pool is not None or crosschecks is not None:
        raise UsageError(
            "--pool and --crosschecks need a FILE of S-LoRA runs; leave them out, because this "
            "FILE has runs of another server"
        )
    compare = validate_serving if kind is Kind.SERVING else validate_programs
    return compare(file, profile, output_dir)


def predict(file: Path, profile: str | None, out: Path) -> None:
    """Write predictions for the runs of a file. Exits with code 1 if a run could not be replayed.

    Raises UsageError if the file has runs of an engine other than SGLang or vLLM.
    """
    if kind_of(file) is not Kind.SERVING:
        raise UsageError(f"--predict {out}: {file} holds no runs of SGLang or vLLM")
    if predict_serving(file, profile, out):
        raise typer.Exit(1)


def print_fit(file: Path, *, as_json: bool) -> None:
    """Repeat the fit of a timing profile to the runs of a file, and print the result."""
    redo = print_serving_fit if kind_of(file) is Kind.SERVING else print_replay_fit
    redo(file, as_json=as_json)
