"""``fairbench reproduce``: run what a figure of the paper still lacks, then draw it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench.cli.executor_flags import ExecutorName, RayAddress
from fairbench.cli.flags import DEFAULT_RESULT_DIR
from fairbench.cli.plot import DEFAULT_PLOT_DIR, QUICK, read_formats
from fairbench.cli.progress import shown_progress
from fairbench.errors import RunFailed, UsageError, unknown_name
from fairbench.execute.context import run_context
from fairbench.execute.executor import Executor
from fairbench.execute.executors import LOCAL, executor_named
from fairbench.figures.style import check_drawable
from fairbench_studies.dlpm.catalogue import (
    FIGURES,
    PaperFigure,
    figure_named,
    figures_of,
)
from fairbench_studies.dlpm.central.store import fill_timings
from fairbench_studies.dlpm.claims.map_command import MAP, MapFiles, draw_claims_map
from fairbench_studies.dlpm.claims.table import Setting, claims_markdown, judge_all, write
from fairbench_studies.frontier.command import FRONTIER, FrontierSize, reproduce_frontier
from fairbench_studies.kit.store import fill_store
from fairbench_studies.preble.command import PREBLE, reproduce_preble
from fairbench_studies.textbook.command import TEXTBOOK, reproduce_textbook
from fairbench_studies.vtc.command import VTC, reproduce_vtc

ALL, CLAIMS = "all", "claims"
AUTHORS = "dlpm-paper"  # the preset beside which claims are judged unless another is named
CLAIMS_DIR = Path("results")
TIMED = "fig4"  # the one figure of timings, not of runs


def reproduce(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Such as fig7, claims (their table), all; vtc, preble or textbook (theirs); or "
            "frontier (fair finish beside the others).",
        ),
    ],
    quick: Annotated[
        bool, Option("--quick/--full", help="One seed of each point, or as many as its sweep has.")
    ] = False,
    formats: Annotated[
        str, Option("--format", metavar="A,B", help="Formats: svg, png, pdf.")
    ] = "svg",
    output_dir: Annotated[Path, Option(help="Where the pictures go.")] = DEFAULT_PLOT_DIR,
    claims_dir: Annotated[Path, Option(help="Where claims.md and claims.csv go.")] = CLAIMS_DIR,
    result_dir: Annotated[
        Path, Option(help="Where the runs are kept, in FIGURE or FIGURE-quick.")
    ] = DEFAULT_RESULT_DIR,
    on_map: Annotated[
        bool, Option("--map", help="With claims: only the map of where each of them holds.")
    ] = False,
    preset: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="A paper's own settings, see `list presets`; claims are judged at both.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, Option(min=1, max=5, help="With frontier: how many seeds of each cell.")
    ] = None,
    executor: ExecutorName = LOCAL,
    ray_address: RayAddress = None,
    disable_tqdm: Annotated[bool, Option("--disable-tqdm", help="No live progress.")] = False,
) -> None:
    """Run what a figure of the DLPM paper lacks, then draw it.

    Or judge all claims of the paper, or map where they hold. Runs that are finished are never run
    again, also after a crash or Ctrl-C.
    """
    known = (*FIGURES, ALL, CLAIMS, VTC, PREBLE, TEXTBOOK, FRONTIER)
    if figure not in known:
        raise unknown_name("figure", figure, known)
    suffixes = read_formats(formats)
    runs_on = executor_named(executor, ray_address)
    if seeds is not None and figure != FRONTIER:
        raise UsageError(f"--seeds: is of {FRONTIER}, not of {figure}")
    if preset is not None and (on_map or figure in (VTC, PREBLE, TEXTBOOK, FRONTIER)):
        raise UsageError(f"--preset {preset}: is of figures and claims of DLPM, not of {figure}")
    if on_map:
        if figure != CLAIMS:
            raise UsageError(f"--map: is of claims, not of {figure}")
        draw_claims_map(
            result_dir / f"{MAP}{QUICK if quick else ''}",
            MapFiles(output_dir, claims_dir, suffixes),
            runs_on,
            quick=quick,
            show=not disable_tqdm,
        )
        return
    if figure == TEXTBOOK:
        reproduce_textbook(claims_dir)
        return
    if figure == VTC:
        check_drawable()
        folder, show = result_dir / VTC, not disable_tqdm
        reproduce_vtc(folder, output_dir, claims_dir, suffixes, runs_on, quick=quick, show=show)
        return
    if figure == PREBLE:
        check_drawable()
        folder, show = result_dir / PREBLE, not disable_tqdm
        reproduce_preble(folder, output_dir, claims_dir, suffixes, runs_on, quick=quick, show=show)
        return
    if figure == FRONTIER:
        check_drawable()
        folder, show = result_dir / FRONTIER, not disable_tqdm
        size = FrontierSize(quick, seeds)
        reproduce_frontier(folder, output_dir, claims_dir, suffixes, runs_on, size, show=show)
        return
    if figure != CLAIMS:
        check_drawable()
    wanted = _wanted(figure, preset)
    folders = {one: result_dir / f"{one.sweep}{QUICK if quick else ''}" for one in wanted}
    _fill(folders, runs_on, quick=quick, show=not disable_tqdm)
    if figure != CLAIMS:
        for one, folder in folders.items():
            for path in one.plot(folder, output_dir, suffixes):
                typer.echo(path)
    if figure in (ALL, CLAIMS):
        _judge(folders, claims_dir)


def _wanted(figure: str, preset: str | None) -> list[PaperFigure]:
    """Return the figures whose runs are needed. Raises UsageError for what a preset has not."""
    if figure not in (ALL, CLAIMS):
        return [figure_named(figure, preset)]
    at_preset = list(figures_of(preset or AUTHORS).values())
    if not at_preset:
        raise UsageError(f"--preset {preset}: no figure of the DLPM paper is bundled for it")
    return [*FIGURES.values(), *at_preset]


def _fill(
    folders: Mapping[PaperFigure, Path], executor: Executor, *, quick: bool, show: bool
) -> None:
    """Run what is missing in the store of each figure.

    Raises RunFailed if points failed, after all the others; Interrupted when interrupted.
    """
    failed = 0
    with run_context(shown_progress(show), executor) as context:
        for figure, folder in folders.items():
            if figure.name == TIMED:
                fill_timings(folder, context, quick=quick)
            else:
                failures = fill_store(figure.sweep, folder, context, quick=quick)
                failed += len(failures)
                for failure in failures:
                    typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
            if context.interrupted():
                raise context.interrupted.ended(f"interrupted; what finished is in {folder}")
    if failed:
        raise RunFailed(f"{failed} points failed; see the folder failed of each store")


def _judge(folders: Mapping[PaperFigure, Path], claims_dir: Path) -> None:
    read = {one: one.read(folder) for one, folder in folders.items()}
    settings = [
        Setting(
            title, {one.name: source for one, source in read.items() if bool(one.preset) is own}
        )
        for title, own in (("at the authors' settings", True), ("at today's defaults", False))
    ]
    judged = judge_all(settings)
    for path in write(judged, settings, claims_dir):
        typer.echo(path)
    typer.echo(claims_markdown(judged, settings), nl=False)
