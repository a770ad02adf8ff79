"""The command ``fairbench validate``, which compares the simulator with measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fairbench import results, sim
from fairbench.cli.options import json_option, option_of
from fairbench.cli.output import print_json
from fairbench.config.flags import RUN
from fairbench.doors import STUDY_GROUP, through
from fairbench.errors import UsageError
from fairbench.results.new_directories import check_writable
from fairbench_calibration import validate as validation


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...|RUN_DIR",
            help="Files of runs measured on real servers (JSON or .json.gz), or the directory of "
            "a run that fairbench made on real servers.",
        ),
    ],
    crosschecks: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON file of published results to compare with the simulator's results, in "
            "addition to the measured runs.",
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory for validation.{json,csv,svg,png}, or, with RUN_DIR, for one JSON "
            "file. Without --output-dir, no file is written. SVG and PNG files need the package "
            "extra `plot`."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option_of(RUN["gpu"], "Timing profile with which to simulate a live run.", default=""),
    ] = None,
    model: Annotated[
        str | None,
        option_of(
            RUN["model"], "Model whose timing profile is compared with a live run.", default=""
        ),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Timing profile for the simulated replay (`fairbench list profiles` shows all "
            "profiles).",
        ),
    ] = None,
    pool: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            min=1,
            help="Size of the KV pool in the simulated replay, in tokens. [default: 10,000]",
        ),
    ] = None,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit",
            help="Repeat the calibration of the simulator and print the result (takes 4 minutes).",
        ),
    ] = False,
    predict: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            help="JSON file to which predictions of SGLang or vLLM runs are written, with "
            "intervals; measured results are not read.",
        ),
    ] = None,
    overview: Annotated[
        bool,
        typer.Option(
            "--overview",
            help="Print one table of the runs in all FILEs, grouped by engine, GPU, model and kind "
            "of prompt. A FILE may be a directory of files. With --output-dir, also "
            "draw a picture with one dot per run.",
        ),
    ] = False,
    as_json: Annotated[bool, json_option(panel=None)] = False,
) -> None:
    """Replay measured runs in the simulator, and compare the results.

    Runs of SGLang and vLLM are replayed by the simulated SGLang or vLLM, with the load and lengths
    of the measured run. Runs of S-LoRA are simulated on an A10G, with the arrivals, lengths and
    scheduler of the measured run. The host's overhead is fitted to the overload and proportional
    runs of S-LoRA, and tested on all other S-LoRA runs. The page docs/reference/validate.md
    describes the format and the sources of FILE.

    Runs of the DLPM authors' judge benchmark are simulated from their command lines. Runs of
    several tenants on one engine are compared by the latency and service of each tenant. If a run
    cannot be replayed, the command prints a line about it, and the exit code is 1.

    A run of fairbench on real servers is simulated with its own seed, load, schedulers and KV
    memory.
    """
    file = files[0]
    if overview:
        _only_overview(crosschecks=crosschecks, pool=pool, predict=predict, fit=fit or None)
        others = through(STUDY_GROUP, "validation", f"validate --overview {file}")
        others.print_overview(files, output_dir, profile, as_json=as_json)
        return
    if len(files) == 1 and file.is_dir():
        if profile is not None or pool is not None or predict is not None:
            raise UsageError(
                f"--profile, --pool and --predict need a FILE, but {file} is the directory "
                "of a run; choose the timing profile of the simulation with --gpu"
            )
        _validate_live(file, gpu, model, output_dir, as_json=as_json)
        return
    others = through(STUDY_GROUP, "validation", f"validate {file}")
    if len(files) > 1:
        if crosschecks is not None or pool is not None or predict is not None or fit:
            raise UsageError("--crosschecks, --pool, --predict and --fit need exactly one FILE")
        others.validate_all(files, output_dir, profile, as_json=as_json)
    elif predict is not None:
        if pool is not None or crosschecks is not None:
            raise UsageError(
                "--pool and --crosschecks cannot be combined with --predict, because they need a "
                "FILE of S-LoRA runs"
            )
        others.predict(file, profile, predict)
    elif fit:
        others.print_fit(file, as_json=as_json)
    else:
        others.validate(file, crosschecks, output_dir, profile, pool, as_json=as_json)


def _only_overview(**others: Any) -> None:
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if given:
        raise UsageError(f"--overview: cannot be combined with {given[0]}")


def _validate_live(
    path: Path, gpu: str | None, model: str | None, output_dir: Path | None, *, as_json: bool
) -> None:
    run = results.read_run(path)
    spec = validation.simulated_spec(run, gpu, model)
    if output_dir is not None:
        check_writable(output_dir)
    comparison = validation.compare_live(run, sim.simulate(spec).summary)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        results.write_json(output_dir / f"{path.resolve().name}.json", comparison.as_dict())
    if as_json:
        print_json(comparison.as_dict())
    else:
        typer.echo("\n".join(validation.live_lines(comparison)))
