"""The functions behind ``fairbench reproduce``: make runs, draw figures, judge claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from fairbench.errors import RunFailed, UsageError, unknown_name
from fairbench.execute.tasks import Executor, run_context
from fairbench.report.progress import shown_progress
from fairbench.results.new_directories import check_writable
from fairbench_papers.cli_plot import QUICK
from fairbench_papers.style import check_drawable
from fairbench_studies.artifact import (
    ARTIFACT,
    artifact_page,
    repeat_first_seeds,
    write_artifact,
)
from fairbench_studies.dlpm.catalogue import FIGURES, PaperFigure, figure_named, figures_of
from fairbench_studies.dlpm.central.store import fill_timings
from fairbench_studies.dlpm.claims.map_command import MAP, MapFiles, draw_claims_map
from fairbench_studies.dlpm.claims.table import (
    AT_DEFAULTS,
    AT_RERUN,
    AUTHORS,
    SEEDS,
    TIMED,
    claims_markdown,
    judge_all,
    stored_settings,
    with_four,
    with_tests,
    write,
)
from fairbench_studies.dlpm.fig4 import write_values
from fairbench_studies.frontier.command import FRONTIER, FrontierSize, reproduce_frontier
from fairbench_studies.frontier.frozen import frozen
from fairbench_studies.kit.claims_page import Setting
from fairbench_studies.kit.paper_runs import judge_stored, reproduce_paper
from fairbench_studies.kit.seeds import keeping, write_seeds
from fairbench_studies.kit.store import fill_store
from fairbench_studies.preble.command import PREBLE
from fairbench_studies.textbook.claims import judge_textbook, write_textbook
from fairbench_studies.textbook.command import TEXTBOOK, reproduce_textbook
from fairbench_studies.vtc.command import VTC

ALL, CLAIMS = "all", "claims"
PAPERS = {paper.name: paper for paper in (VTC, PREBLE)}
OTHERS = (*PAPERS, FRONTIER)
# ``PRESETS`` says, for each group of settings, whether the settings come from a preset.
PRESETS = {AT_RERUN: True, AT_DEFAULTS: False}


@dataclass(frozen=True)
class Asked:
    """The options that the user gave ``fairbench reproduce``."""

    figure: str
    quick: bool
    full: bool
    suffixes: list[str]
    output_dir: Path
    claims_dir: Path
    result_dir: Path
    on_map: bool
    preset: str | None
    seeds: int | None
    source: Path | None
    runs_on: Executor
    show: bool

    @property
    def ending(self) -> str:
        """The suffix of the names of run folders, which marks runs with --quick."""
        return QUICK if self.quick else ""


def carry_out(asked: Asked) -> None:
    """Carry out the user's request: make missing runs, draw a figure, or judge claims."""
    _check(asked)
    if asked.figure == ARTIFACT:
        _artifact(asked)
    elif asked.source is not None and asked.figure in PAPERS:
        judge_stored(PAPERS[asked.figure], asked.source, asked.claims_dir)
    elif asked.source is not None:
        _judge_stored(asked.source, asked.claims_dir)
    elif asked.on_map:
        files = MapFiles(asked.output_dir, asked.claims_dir, asked.suffixes)
        store = asked.result_dir / f"{MAP}{asked.ending}"
        draw_claims_map(store, files, asked.runs_on, quick=asked.quick, show=asked.show)
    elif asked.figure == TEXTBOOK:
        reproduce_textbook(asked.claims_dir)
    elif asked.figure in OTHERS:
        _another_paper(asked)
    else:
        _figures(asked)


def _check(asked: Asked) -> None:
    known = (*FIGURES, ALL, CLAIMS, *OTHERS, TEXTBOOK, ARTIFACT)
    figure, preset = asked.figure, asked.preset
    if figure not in known:
        raise unknown_name("figure", figure, known)
    if asked.seeds is not None and figure != FRONTIER:
        raise UsageError(f"--seeds can be given only with {FRONTIER}, not with {figure}")
    if preset is not None and (asked.on_map or figure in (*PAPERS, TEXTBOOK, ARTIFACT)):
        raise UsageError(
            f"--preset {preset} can be given only with {FRONTIER}, or with figures or claims "
            f"of the DLPM paper, not with {figure}"
        )
    if asked.source is not None and (figure not in (CLAIMS, *PAPERS, ARTIFACT) or asked.on_map):
        other = "--map" if asked.on_map else figure
        allowed = f"{', '.join((CLAIMS, *PAPERS))} and {ARTIFACT}"
        raise UsageError(f"--from can be given only with {allowed}, not with {other}")
    if asked.on_map and figure != CLAIMS:
        raise UsageError(f"--map can be given only with claims, not with {figure}")
    for flag in ("output_dir", "claims_dir"):
        check_writable(getattr(asked, flag), flag)


def _artifact(asked: Asked) -> None:
    """Judge all claims from stored values, and write a page about every figure and claim.

    With ``full``, all simulations run before the claims are judged. With ``quick``, nothing is
    simulated. By default, only the first seed of each figure is simulated and compared with stored
    values.
    """
    if asked.full:
        for figure in (ALL, *PAPERS):
            carry_out(replace(asked, figure=figure))
    source = asked.source or asked.claims_dir
    if not asked.full:
        _write(stored_settings(source), asked.claims_dir, source / SEEDS, said=False)
    write_textbook(judge_textbook(), asked.claims_dir)
    repeated = {}
    if not (asked.quick or asked.full):
        with run_context(shown_progress() if asked.show else None, asked.runs_on) as context:
            repeated = repeat_first_seeds(source, asked.result_dir, context)
            if context.interrupted():
                raise context.interrupted.ended(f"interrupted; finished runs are in {source}")
    page = artifact_page((asked.claims_dir, source), repeated)
    for one in page.headlines:
        typer.echo(f"{one.label}: {one.value} ({one.note})")
    for figure, said in repeated.items():
        typer.echo(f"{figure}: {said}")
    for path in write_artifact(page, asked.claims_dir):
        typer.echo(path)


def _another_paper(asked: Asked) -> None:
    check_drawable()
    folder = asked.result_dir / asked.figure
    if asked.figure == FRONTIER:
        folder = asked.result_dir / frozen(asked.preset).name
    files = (folder, asked.output_dir, asked.claims_dir, asked.suffixes, asked.runs_on)
    if asked.figure == FRONTIER:
        size = FrontierSize(asked.quick, asked.seeds, asked.preset)
        reproduce_frontier(*files, size, show=asked.show)
    else:
        reproduce_paper(PAPERS[asked.figure], *files, quick=asked.quick, show=asked.show)


def _figures(asked: Asked) -> None:
    drawn = asked.figure != CLAIMS
    if drawn:
        check_drawable()
    wanted = _wanted(asked.figure, asked.preset)
    folders = {one: asked.result_dir / f"{one.sweep}{asked.ending}" for one in wanted}
    _fill(folders, asked.runs_on, quick=asked.quick, show=asked.show)
    if drawn:
        for one, folder in folders.items():
            for path in one.plot(folder, asked.output_dir, asked.suffixes):
                typer.echo(path)
    if asked.figure in (ALL, CLAIMS):
        _judge(folders, asked.claims_dir)


def _wanted(figure: str, preset: str | None) -> list[PaperFigure]:
    """Return the figures that the command-line argument FIGURE names.

    Raises UsageError if the preset has no figure.
    """
    if figure not in (ALL, CLAIMS):
        return [figure_named(figure, preset)]
    at_preset = list(figures_of(preset or AUTHORS).values())
    if not at_preset:
        raise UsageError(f"--preset {preset}: there is no figure of the DLPM paper for this preset")
    return [*FIGURES.values(), *at_preset]


def _fill(
    folders: Mapping[PaperFigure, Path], executor: Executor, *, quick: bool, show: bool
) -> None:
    """Run the missing simulations in the folder of each figure.

    Raises Interrupted after a signal. If simulations failed, raises RunFailed when all other
    simulations have ended.
    """
    failed = 0
    with run_context(shown_progress() if show else None, executor) as context:
        for figure, folder in folders.items():
            if figure.name == TIMED:
                fill_timings(folder, context, quick=quick)
            else:
                failures = fill_store(figure.sweep, folder, context, quick=quick)
                failed += len(failures)
                for failure in failures:
                    typer.echo(f"fairbench: {failure.name}: {failure.error}", err=True)
            if context.interrupted():
                raise context.interrupted.ended(f"interrupted; finished runs are in {folder}")
    if failed:
        raise RunFailed(f"runs failed: {failed}; see the subfolder `failed` of each sweep")


def _judge(folders: Mapping[PaperFigure, Path], claims_dir: Path) -> None:
    read = {one: one.read(folder) for one, folder in folders.items()}
    kept = {one: keeping(source) if one.name != TIMED else source for one, source in read.items()}
    settings = [_setting(title, kept, own=own) for title, own in PRESETS.items()]
    _write(with_tests(settings), claims_dir)
    stored = {one.sweep: source for one, source in kept.items() if one.name != TIMED}
    paths = {name: claims_dir / SEEDS / f"{name}.csv" for name in (*stored, TIMED)}
    for name, source in stored.items():
        write_seeds(paths[name], source)
    write_values(paths[TIMED], read[FIGURES[TIMED]])
    for path in paths.values():
        typer.echo(path)


def _setting(title: str, kept: Mapping[PaperFigure, Any], *, own: bool) -> Setting:
    sources = {one.name: source for one, source in kept.items() if bool(one.preset) is own}
    return Setting(title, with_four(sources))


def _judge_stored(source: Path, claims_dir: Path) -> None:
    _write(stored_settings(source), claims_dir, source / SEEDS)


def _write(
    settings: Sequence[Setting], claims_dir: Path, seeds: Path | None = None, *, said: bool = True
) -> None:
    judged = judge_all(settings, seeds or claims_dir / SEEDS)
    for path in write(judged, settings, claims_dir):
        typer.echo(path)
    if said:
        typer.echo(claims_markdown(judged, settings), nl=False)
