"""``fairbench plot``: a figure of the paper from runs that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench.cli.flags import DEFAULT_RESULT_DIR, split_commas
from fairbench.cli.studies import study
from fairbench.errors import UsageError, unknown_name
from fairbench.figures.style import FORMATS

DEFAULT_PLOT_DIR = Path("plots")
QUICK = "-quick"  # ends the name of a store that holds one seed of each point


def plot(
    figure: Annotated[str, typer.Argument(metavar="FIGURE", help="Such as fig7, or all.")],
    source: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="DIR",
            help="Where its runs are. [default: results/runs/FIGURE, or FIGURE-quick]",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        Option(metavar="NAME", help="The figure at a paper's own settings, see `list presets`."),
    ] = None,
    formats: Annotated[
        str, Option("--format", metavar="A,B", help="Formats: svg, png, pdf.")
    ] = "svg",
    output_dir: Annotated[Path, Option(help="Where the pictures go.")] = DEFAULT_PLOT_DIR,
) -> None:
    """Draw a figure of the DLPM paper from stored runs.

    The numbers in it are saved as CSV. Runs nothing; `fairbench reproduce FIGURE` does.
    """
    suffixes = read_formats(formats)
    catalogue = study("dlpm.catalogue", f"plot {figure}")
    if figure == "all":
        if source is not None:
            raise UsageError(f"--from {source}: holds the runs of one figure, so name it")
        known = catalogue.FIGURES if preset is None else catalogue.figures_of(preset)
        wanted = list(known.values())
    else:
        wanted = [catalogue.figure_named(figure, preset)]
    for one in wanted:
        folder = source or stored(one.sweep)
        if not folder.is_dir():
            made = one.name if preset is None else f"{one.name} --preset {preset}"
            raise UsageError(f"{folder}: no such store: `fairbench reproduce {made}` makes it")
        for path in one.plot(folder, output_dir, suffixes):
            typer.echo(path)


def read_formats(text: str) -> list[str]:
    """The formats between the commas. Raises UsageError for an unknown one."""
    found = split_commas("--format", text)
    for one in found:
        if one not in FORMATS:
            raise unknown_name("--format", one, FORMATS)
    return found


def stored(name: str) -> Path:
    """Where ``fairbench reproduce`` keeps the runs of a figure: the full store before the quick."""
    full = DEFAULT_RESULT_DIR / name
    quick = DEFAULT_RESULT_DIR / f"{name}{QUICK}"
    return quick if quick.exists() and not full.exists() else full
