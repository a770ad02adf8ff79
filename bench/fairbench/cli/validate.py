"""``fairbench validate``: the simulator against runs measured on a real server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from fairbench.cli.output import print_json
from fairbench.cli.validate_serving import predict_serving, print_serving_fit, validate_serving
from fairbench.errors import UsageError
from fairbench.hardware.catalogue import load_profile
from fairbench.results.directories import check_writable
from fairbench.results.store import read_run, write_json
from fairbench.sim.run import simulate
from fairbench.validate.calibrate import candidates, fitted_runs
from fairbench.validate.compare import RunComparison, compare_run
from fairbench.validate.crosschecks import crosschecks as read_crosschecks
from fairbench.validate.files import as_json_object, check_output, write_files
from fairbench.validate.live_run import compare_live, live_lines, simulated_spec
from fairbench.validate.measured import MeasuredRun, load_measured
from fairbench.validate.order import scheduler_orders
from fairbench.validate.replay import (
    FITTED_PROFILE,
    FITTED_SCENARIOS,
    PREFILL_OVERHEAD_MS,
    replay_run,
)
from fairbench.validate.serving.files import holds_serving_runs
from fairbench.validate.table import validation_text


def validate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|RUN_DIR",
            help="Measured runs, JSON lines (.gz or not), or the directory of a live run of ours.",
        ),
    ],
    crosschecks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Published numbers to compare with the simulator's as well, JSON."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where validation.{json,csv,svg,png} go, or RUN_DIR's name with .json; without "
            "it, none."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Of a live run: the timing profile to simulate it with."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Of a live run: the timing profile's model.")
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Only redo the calibration and print it (30 s).")
    ] = False,
    predict: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of SGLang or vLLM runs: only write what the simulator expects, with intervals, "
            "to FILE (JSON); measured results are not read.",
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The timing profile to replay with: fairbench list."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Replay measured runs in the simulator, and compare.

    Same arrivals, lengths and scheduler; S-LoRA's engine on an A10G with Llama-2-7b. Two constants
    of prefill are fitted to the overload and proportional runs; all other runs are the test.

    A live run of ours is simulated with its own seed, load, schedulers and KV pool.
    """
    if file.is_dir():
        _validate_live(file, gpu, model, output_dir, as_json=as_json)
        return
    if holds_serving_runs(file):
        if predict is not None:
            predict_serving(file, profile, predict)
        elif fit:
            print_serving_fit(file, as_json=as_json)
        else:
            validate_serving(file, profile, output_dir, as_json=as_json)
        return
    if predict is not None:
        raise UsageError("predict: only runs of SGLang and vLLM can be predicted (docs/validation)")
    runs = load_measured(file)
    if fit:
        _print_fit(runs, as_json=as_json)
        return
    if output_dir is not None:
        check_output(output_dir)
    checks = None if crosschecks is None else _crosschecks(crosschecks)
    _report(_compared(runs), checks, output_dir, as_json=as_json)


def _validate_live(
    path: Path, gpu: str | None, model: str | None, output_dir: Path | None, *, as_json: bool
) -> None:
    run = read_run(path)
    spec = simulated_spec(run, gpu, model)
    if output_dir is not None:
        check_writable(output_dir)
    comparison = compare_live(run, simulate(spec).summary)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / f"{path.resolve().name}.json", comparison.as_dict())
    if as_json:
        print_json(comparison.as_dict())
    else:
        typer.echo("\n".join(live_lines(comparison)))


def _compared(runs: list[MeasuredRun]) -> list[RunComparison]:
    return [
        compare_run(
            run.name,
            run.scenario,
            run.trace,
            replay_run(run),
            fitted=run.scenario in FITTED_SCENARIOS,
        )
        for run in runs
    ]


def _report(
    runs: list[RunComparison],
    checks: list[Mapping[str, Any]] | None,
    output_dir: Path | None,
    *,
    as_json: bool,
) -> None:
    orders = scheduler_orders(runs)
    whole = as_json_object(runs, orders, _settings(), checks)
    if output_dir is not None:
        write_files(output_dir, whole, runs, _basis())
        typer.echo(f"fairbench: written to {output_dir}", err=True)
    if as_json:
        print_json(whole)
    else:
        typer.echo(validation_text(runs, orders, _basis(), checks), nl=False)


def _settings() -> dict[str, Any]:
    return {
        "timing_profile": FITTED_PROFILE,
        "fitted_scenarios": list(FITTED_SCENARIOS),
        "fitted": {
            "c_T_ms": load_profile(FITTED_PROFILE).coefficients_ms["c_T"],
            "prefill_overhead_ms": PREFILL_OVERHEAD_MS,
        },
    }


def _basis() -> str:
    settings = _settings()
    values = settings["fitted"]
    return (
        f"timing profile {settings['timing_profile']}; fitted, to the "
        f"{' and '.join(settings['fitted_scenarios'])} runs only: c_T = {values['c_T_ms']:g} ms a "
        f"prefilled token, {values['prefill_overhead_ms']:g} ms a minibatch"
    )


def _crosschecks(path: Path) -> list[Mapping[str, Any]]:
    return [check.as_dict() for check in read_crosschecks(path)]


def _print_fit(runs: list[MeasuredRun], *, as_json: bool) -> None:
    fits = list(candidates(fitted_runs(runs)))
    best = min(fits, key=lambda one: one.error)
    if as_json:
        print_json({"candidates": [asdict(one) for one in fits], "best": asdict(best)})
        return
    for one in fits:
        typer.echo(
            f"c_T {one.c_t_ms:.2f} ms, minibatch {one.prefill_overhead_ms:.0f} ms: "
            f"error {one.error:.2%}{'  <- best' if one is best else ''}"
        )
