"""``fairbench reproduce``: run what a figure of the paper still lacks, then draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench.cli.flags import DEFAULT_RESULT_DIR, ExecutorName, RayAddress
from fairbench.cli.plot import DEFAULT_PLOT_DIR, read_formats
from fairbench.execute.executors import LOCAL, executor_named

CLAIMS_DIR = Path("results")


def reproduce(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="A figure such as fig7, or all; claims (their table); vtc, preble or textbook; "
            "or frontier (fair finish beside the others).",
        ),
    ],
    quick: Annotated[
        bool,
        Option("--quick/--full", help="Run one seed of each point, or all seeds of its sweep."),
    ] = False,
    formats: Annotated[
        str, Option("--format", metavar="A,B", help="Formats: svg, png, pdf.")
    ] = "svg",
    output_dir: Annotated[Path, Option(help="Directory for the pictures.")] = DEFAULT_PLOT_DIR,
    claims_dir: Annotated[
        Path, Option(help="Directory for claims.md and claims.csv.")
    ] = CLAIMS_DIR,
    result_dir: Annotated[
        Path, Option(help="Directory that keeps the runs, in FIGURE or FIGURE-quick.")
    ] = DEFAULT_RESULT_DIR,
    on_map: Annotated[
        bool, Option("--map", help="Draw only the map of where each claim holds (with claims).")
    ] = False,
    preset: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="A paper's own settings, see `list presets`; claims are judged at both.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        Option(min=1, max=5, help="Number of seeds of each configuration (with frontier)."),
    ] = None,
    executor: ExecutorName = LOCAL,
    ray_address: RayAddress = None,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Run what a figure of the DLPM paper lacks, then draw it.

    Or judge all claims of the paper, or map where they hold. Runs that are finished are never run
    again, also after a crash or Ctrl-C.
    """
    from fairbench_studies.reproduction import Asked, carry_out

    carry_out(
        Asked(
            figure=figure,
            quick=quick,
            suffixes=read_formats(formats),
            output_dir=output_dir,
            claims_dir=claims_dir,
            result_dir=result_dir,
            on_map=on_map,
            preset=preset,
            seeds=seeds,
            runs_on=executor_named(executor, ray_address),
            show=not disable_tqdm,
        )
    )
