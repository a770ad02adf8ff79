"""``fairbench plot``: draw a figure of the DLPM paper, or pictures of the runs in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from fairbench import results
from fairbench.cli.options import DEFAULT_RESULT_DIR
from fairbench.config.parse_flags import split_commas
from fairbench.doors import STUDY_GROUP, through
from fairbench.errors import UsageError, unknown_name, writing

DEFAULT_PLOT_DIR = Path("plots")
ALL = "all"
# suffix of directories with quick runs, which have one seed per point
QUICK = "-quick"


def plot(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE|DIR",
            help="Name of a figure, such as fig7; all for all figures; or the directory of your "
            "own sweep or comparison.",
        ),
    ],
    source: Annotated[
        Path | None,
        Option(
            "--from",
            metavar="DIR",
            help="Directory with the finished runs that the figure shows. [default: "
            "results/runs/FIGURE, or FIGURE-quick]",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Preset whose settings the figure uses (see `fairbench list presets`).",
        ),
    ] = None,
    formats: Annotated[
        str, Option("--format", metavar="A,B", help="File formats of the pictures: svg, png, pdf.")
    ] = "svg",
    output_dir: Annotated[
        Path | None,
        Option(
            help="Directory for the pictures. [default: DIR/plots if the first argument is a "
            "directory of runs, otherwise plots]"
        ),
    ] = None,
    table: Annotated[
        Path | None,
        Option(
            metavar="FILE.tex",
            help="File to which the results in DIR are also written, as a LaTeX table.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            metavar="METRIC,METRIC",
            help="Metrics of the LaTeX table, such as service_rate_tok_s,victim_p95_s. [default: "
            "as many metrics of the comparison as fit into a column of a two-column paper]",
        ),
    ] = None,
) -> None:
    """Draw a figure of the DLPM paper, or of your own runs.

    The command draws stored runs and makes no new runs.

    From a directory of runs, the command draws bars with 95% confidence intervals, P95 latency
    against throughput, and the distribution of latencies. The command also plots results against
    each parameter, load or number of replicas that varies. For a figure of the DLPM paper, the
    command also saves the drawn numbers as CSV.
    """
    suffixes = read_formats(formats)
    keys = split_commas("--columns", columns) if columns else ()
    if keys and table is None:
        raise UsageError(
            f"--columns {columns} needs --table FILE.tex, the file to which the columns are written"
        )
    if figure != ALL and Path(figure).is_dir():
        if source is not None or preset is not None:
            raise UsageError(
                f"{figure} is a directory: --from and --preset can be given only with the "
                "name of a figure"
            )
        output_dir = output_dir or Path(figure) / DEFAULT_PLOT_DIR
        _plot_own(Path(figure), output_dir, suffixes, table, keys)
        return
    if table is not None:
        raise UsageError(
            f"--table {table} needs a directory of runs, and {figure} is the name of a figure"
        )
    catalogue = through(STUDY_GROUP, "figures", f"plot {figure}")
    if figure == ALL:
        if source is not None:
            raise UsageError(
                f"--from {source} holds the runs of one figure: give the name of this figure "
                "instead of all"
            )
        known = catalogue.FIGURES if preset is None else catalogue.figures_of(preset)
        wanted = list(known.values())
    else:
        wanted = [catalogue.figure_named(figure, preset)]
    for one in wanted:
        folder = source or stored(one.sweep)
        if not folder.is_dir():
            made = one.name if preset is None else f"{one.name} --preset {preset}"
            raise UsageError(
                f"{folder}: no such directory; `fairbench reproduce {made}` creates it"
            )
        for path in one.plot(folder, output_dir or DEFAULT_PLOT_DIR, suffixes):
            typer.echo(path)


def _plot_own(
    folder: Path,
    output_dir: Path,
    suffixes: list[str],
    table: Path | None,
    columns: Sequence[str],
) -> None:
    if table is not None and table.suffix != ".tex":
        raise UsageError(f"--table {table}: must end in .tex")
    from fairbench_papers.compared import write_pictures
    from fairbench_papers.latex import latex_table

    cells = results.sides_below(folder)
    # Write the table before the figures, because only the figures need a drawing library.
    if table is not None:
        text = latex_table(cells, columns)
        with writing(table, "--table"):
            if table.parent == output_dir:
                output_dir.mkdir(parents=True, exist_ok=True)
            results.write_text(table, text)
        typer.echo(table)
    for path in write_pictures(cells, output_dir, folder.resolve().name, suffixes):
        typer.echo(path)


def read_formats(text: str) -> list[str]:
    """Parse comma-separated formats.

    Raises UsageError for a picture format that fairbench cannot write.
    """
    from fairbench_papers.style import FORMATS

    found = split_commas("--format", text)
    for one in found:
        if one not in FORMATS:
            raise unknown_name("--format", one, FORMATS)
    return found


def stored(name: str) -> Path:
    """Return the directory of a figure's full runs or, if there are none, of its quick runs."""
    full = DEFAULT_RESULT_DIR / name
    quick = DEFAULT_RESULT_DIR / f"{name}{QUICK}"
    return quick if quick.exists() and not full.exists() else full
