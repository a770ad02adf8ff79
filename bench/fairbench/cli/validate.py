"""``fairbench validate``: the simulator against runs measured on a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbench.cli.studies import study
from fairbench.errors import UsageError
from fairbench.results.directories import check_writable


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...|RUN_DIR",
            help="Measured runs, JSON (.gz or not), or the directory of a live run of ours.",
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
            help="Directory for validation.{json,csv,svg,png}, or RUN_DIR's name with .json; "
            "without "
            "it, none. The pictures need the plot extra."
        ),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Timing profile with which to simulate a live run.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of the timing profile for a live run.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The timing profile to replay with: fairbench list."),
    ] = None,
    pool: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", min=1, help="The KV pool to replay with; 10,000."),
    ] = None,
    fit: Annotated[
        bool, typer.Option("--fit", help="Only redo the calibration and print it (4 min).")
    ] = False,
    predict: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="Only write predictions of SGLang or vLLM runs, with intervals, "
            "to OUT (JSON); measured results are not read.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Replay measured runs in the simulator, and compare.

    Runs of SGLang and vLLM: same load and lengths, the engine's own contract, the measured profile
    on an A100. Runs of S-LoRA: same arrivals, lengths and scheduler, on an A10G unless told
    otherwise. What the host adds is fitted to the overload and proportional runs; all other runs
    are the test. docs/guide/validate.md says where FILE comes from, and its format.

    Runs of the DLPM authors' judge benchmark: their command lines, simulated. Runs of several
    tenants straight to an engine: latency and share of each. A run that cannot be replayed is a
    line of its own, and the exit code is 1.

    A live run of ours is simulated with its own seed, load, schedulers and KV pool.
    """
    file = files[0]
    if len(files) == 1 and file.is_dir():
        if profile is not None or pool is not None or predict is not None:
            raise UsageError(
                "--profile, --pool, --predict: of a FILE; the directory of a run takes --gpu"
            )
        _validate_live(file, gpu, model, output_dir, as_json=as_json)
        return
    others = study("validation.command", f"validate {file}")
    if len(files) > 1:
        if crosschecks is not None or pool is not None or predict is not None or fit:
            raise UsageError("--crosschecks, --pool, --predict, --fit: of one FILE at a time")
        others.validate_all(files, output_dir, profile, as_json=as_json)
    elif predict is not None:
        if pool is not None or crosschecks is not None:
            raise UsageError("--pool, --crosschecks: of S-LoRA's runs; these have their own pools")
        others.predict(file, profile, predict)
    elif fit:
        others.print_fit(file, as_json=as_json)
    else:
        others.validate(file, crosschecks, output_dir, profile, pool, as_json=as_json)


def _validate_live(
    path: Path, gpu: str | None, model: str | None, output_dir: Path | None, *, as_json: bool
) -> None:
    from fairbench.cli.output import print_json
    from fairbench.results.store import read_run, write_json
    from fairbench.sim.run import simulate
    from fairbench.validate.live_run import compare_live, live_lines, simulated_spec

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
