"""``fairbench reproduce``, which runs a figure's missing simulations and draws the figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench.cli.options import DEFAULT_RESULT_DIR, ExecutorName, NoProgress, RayAddress
from fairbench.execute.executors import LOCAL, executor_named
from fairbench_papers.cli_plot import DEFAULT_PLOT_DIR, read_formats

CLAIMS_DIR = Path("results")


def reproduce(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Name of a figure, such as fig7, or all. Other values: claims (judge all claims); "
            "vtc, preble or textbook (repeat a study); frontier (compare fair-finish with the "
            "other schedulers); artifact (write a page about every figure and claim).",
        ),
    ],
    quick: Annotated[
        bool | None,
        Option(
            "--quick/--full",
            help="--quick runs one seed of each configuration, and --full runs all seeds. For "
            "FIGURE artifact, --quick builds a page of all results from stored results, and --full "
            "runs all simulations first. [default: all seeds; for FIGURE artifact, the first seed "
            "of each figure]",
            show_default=False,
        ),
    ] = None,
    formats: Annotated[
        str, Option("--format", metavar="A,B", help="File formats of the pictures: svg, png, pdf.")
    ] = "svg",
    output_dir: Annotated[Path, Option(help="Directory for the pictures.")] = DEFAULT_PLOT_DIR,
    claims_dir: Annotated[
        Path, Option(help="Directory to which claims.md and claims.csv are written.")
    ] = CLAIMS_DIR,
    result_dir: Annotated[
        Path,
        Option(
            help="Directory for the runs; the runs of a figure are stored in the subdirectory "
            "FIGURE, or FIGURE-quick with --quick."
        ),
    ] = DEFAULT_RESULT_DIR,
    on_map: Annotated[
        bool,
        Option("--map", help="If FIGURE is claims, only show at which settings claims hold."),
    ] = False,
    preset: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Preset with the settings of a paper (`fairbench list presets` shows all "
            "presets). If FIGURE is claims, the claims are judged with the settings of the "
            "preset, and again with the default settings.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        Option(min=1, max=5, help="Number of seeds of each configuration, if FIGURE is frontier."),
    ] = None,
    source: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="DIR",
            help="Directory with stored values of each seed, such as 'results', from which claims "
            "are judged. Allowed only if FIGURE is claims, vtc, preble or artifact. With --from, "
            "only artifact runs simulations.",
        ),
    ] = None,
    executor: ExecutorName = LOCAL,
    ray_address: RayAddress = None,
    disable_tqdm: NoProgress = False,
) -> None:
    """Run missing simulations of a paper's figure; draw the figure.

    With "claims", the command judges all claims; with --map, it draws a map of where they hold. A
    finished run is never repeated, even after a crash or Ctrl-C.
    """
    from fairbench_studies.reproduction import Asked, carry_out

    carry_out(
        Asked(
            figure=figure,
            quick=bool(quick),
            full=quick is False,
            suffixes=read_formats(formats),
            output_dir=output_dir,
            claims_dir=claims_dir,
            result_dir=result_dir,
            on_map=on_map,
            preset=preset,
            seeds=seeds,
            source=source,
            runs_on=executor_named(executor, ray_address),
            show=not disable_tqdm,
        )
    )
