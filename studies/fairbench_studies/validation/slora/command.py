"""``fairbench validate FILE`` for runs of S-LoRA's engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairbench.hardware.catalogue import named_profile
from fairbench.hardware.timing import TimingProfile
from fairbench_studies.validation.report import Report, each

if TYPE_CHECKING:
    from fairbench_studies.validation.slora.compare import RunComparison
    from fairbench_studies.validation.slora.measured import MeasuredRun


def validate_replay(
    file: Path,
    crosschecks: Path | None,
    output_dir: Path | None,
    profile: str | None,
    pool: int | None,
) -> Report:
    """Replay every measured run in a file, and compare the simulation with the measurement."""
    from fairbench_studies.validation.slora.files import check_output
    from fairbench_studies.validation.slora.measured import read_measured
    from fairbench_studies.validation.slora.replay import POOL_TOKENS

    timing = None if profile is None else named_profile(profile)
    read, unread = read_measured(file)
    if output_dir is not None:
        check_output(output_dir)
    checks = None if crosschecks is None else _crosschecks(crosschecks)
    tokens = pool or POOL_TOKENS
    runs, failed = each(
        lambda run: _compared(run, timing, tokens), read, lambda run: run.name, replayed=True
    )
    whole, text = _report(runs, checks, output_dir, profile, tokens)
    return Report(whole, text, [*unread, *failed])


def _crosschecks(path: Path) -> list[Mapping[str, Any]]:
    from fairbench_studies.validation.slora.crosschecks import crosschecks as read_crosschecks

    return [check.as_dict() for check in read_crosschecks(path)]


def _compared(run: MeasuredRun, timing: TimingProfile | None, pool: int) -> RunComparison:
    from fairbench_studies.validation.slora.compare import compare_run
    from fairbench_studies.validation.slora.replay import FITTED_RUNS, replay_run

    simulated = replay_run(run, timing, pool)
    fitted = timing is None and not run.section and run.name in FITTED_RUNS
    return compare_run(run.name, run.scenario, run.trace, simulated, fitted=fitted)


def _report(
    runs: list[RunComparison],
    checks: list[Mapping[str, Any]] | None,
    output_dir: Path | None,
    profile: str | None,
    pool: int,
) -> tuple[dict[str, Any], str]:
    from fairbench_studies.validation.slora.files import as_json_object, write_files
    from fairbench_studies.validation.slora.order import scheduler_orders
    from fairbench_studies.validation.slora.settings import basis, settings, title
    from fairbench_studies.validation.slora.table import validation_text

    orders, said = scheduler_orders(runs), basis(profile, pool)
    whole = as_json_object(runs, orders, settings(profile, pool), checks)
    if output_dir is not None:
        drawn = write_files(output_dir, whole, runs, title(profile), said)
        typer.echo(f"fairbench: written to {output_dir}", err=True)
        if not drawn:
            typer.echo("fairbench: no figure: it needs pip install '.[plot]'", err=True)
    return whole, validation_text(runs, orders, said, checks)


def print_replay_fit(file: Path, *, as_json: bool) -> None:
    """Print all candidate costs of the measured server, and then the best-fitting costs."""
    from fairbench.cli.output import print_json
    from fairbench_studies.validation.slora.calibrate import best, candidates, fitted_runs
    from fairbench_studies.validation.slora.measured import load_measured

    runs = fitted_runs(load_measured(file))
    fits = list(candidates(runs))
    chosen = best(runs, fits)
    if as_json:
        print_json({"candidates": [asdict(one) for one in fits], "best": asdict(chosen)})
        return
    for one in fits:
        typer.echo(
            f"{one.recorded}: minibatch {one.prefill_overhead_ms:.0f} ms, running request "
            f"{one.request_step_ms:.2f} ms a step: error {one.error:.2%}"
        )
    steps = ", ".join(f"{ms:g} ms ({date})" for date, ms in chosen.request_step_ms.items())
    typer.echo(
        f"best: minibatch {chosen.prefill_overhead_ms:.0f} ms, running request {steps} a step, way "
        f"in and out {chosen.response_ms:.0f} ms: error {chosen.error:.2%}"
    )
