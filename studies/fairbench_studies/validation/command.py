"""``fairbench validate FILE`` of the runs that only these studies compare, and its ``--fit``."""

from __future__ import annotations

from pathlib import Path

import typer

from fairbench.cli.output import print_json
from fairbench.errors import DataError, UsageError
from fairbench.validate.report import Report
from fairbench.validate.serving.files import holds_serving_runs, load_serving
from fairbench_studies.validation.programs.command import validate_programs
from fairbench_studies.validation.programs.files import holds_program_runs
from fairbench_studies.validation.serving_fit import fit
from fairbench_studies.validation.slora.command import print_replay_fit, validate_replay


def validate(
    file: Path,
    crosschecks: Path | None,
    output_dir: Path | None,
    profile: str | None,
    pool: int | None,
) -> Report:
    """Replay and compare the runs of a file: of the DLPM authors' benchmark, else of S-LoRA."""
    if not holds_program_runs(file):
        return validate_replay(file, crosschecks, output_dir, profile, pool)
    if pool is not None or crosschecks is not None:
        raise UsageError("--pool, --crosschecks: of S-LoRA's runs; these have their own pools")
    return validate_programs(file, profile, output_dir)


def print_fit(file: Path, *, as_json: bool) -> None:
    """Redo the calibration of a profile to the runs of a file, and print it."""
    redo = _print_serving_fit if holds_serving_runs(file) else print_replay_fit
    redo(file, as_json=as_json)


def _print_serving_fit(file: Path, *, as_json: bool) -> None:
    """Redo the calibration of the measured profile, step by step."""
    runs = [run for run in load_serving(file) if run.fitted and run.engine == "sglang"]
    if not runs:
        raise DataError(f"{file}: no run that a profile is fitted to: sglang-a100-fixed-*, ...")
    if len(gpus := sorted({run.gpu for run in runs})) > 1:
        raise DataError(f"{file}: runs of several GPUs are fitted to: {', '.join(gpus)}")
    for found in fit(runs):
        if not as_json:
            typer.echo(f"error {found.error:.4f}: {_numbers(found.values)}")
    if as_json:
        print_json({"best": {"values": found.values, "error": found.error}})


def _numbers(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
