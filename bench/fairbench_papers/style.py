"""A style of figures that is readable in print, in grey and by colour-blind readers."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.errors import UsageError, writing
from fairbench.report.palette import SCHEDULERS, SERIES, Swatch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
DPI = 150
LETTERS_PER_IN = 15  # The text below figures has about this number of letters per inch.
# A legend has 11 letters per inch, line samples as wide as 8 letters, and rows of 0.18 inches.
LEGEND_LETTERS_PER_IN, KEY_LETTERS, LEGEND_ROW_IN = 11, 8, 0.18


class SeriesStyle(NamedTuple):
    """The appearance of a series: label, colour, mark, and matplotlib's line style ``line``."""

    label: str
    colour: str
    marker: str
    line: str | tuple[float, tuple[float, ...]]


LABELS = {
    "fcfs": "RR + FCFS",
    "lpm": "RR + LPM",
    "vtc": "VTC",
    "preble": "Preble",
    "preble-code": "Preble's code",
    "dlpm": "DLPM",
    "d2lpm": "D²LPM",
    "fair-finish": "fair-finish",
}
UNKNOWN = "0.5"  # A series without a style of its own is drawn in this grey.
HATCHES = ("", "///", "...", "xxx")


def scheduler_style(name: str) -> SeriesStyle:
    """Return the style of a scheduler; unknown schedulers are grey."""
    if name not in SCHEDULERS:
        return SeriesStyle(name, UNKNOWN, "x", "-")
    return _style(LABELS[name], SCHEDULERS[name])


def styles_of(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """Return each scheduler's style; schedulers without a fixed style get unused styles."""
    listed = list(names)
    taken = {SCHEDULERS[name] for name in listed if name in SCHEDULERS}
    free = cycle([swatch for swatch in SERIES if swatch not in taken] or SERIES)
    return {
        name: scheduler_style(name) if name in SCHEDULERS else _style(name, next(free))
        for name in listed
    }


def client_style(number: int) -> SeriesStyle:
    """Return the style of the client with the given number."""
    return _style(f"client {number}", SERIES[number % len(SERIES)])


def _style(label: str, swatch: Swatch) -> SeriesStyle:
    line = (0.0, swatch.dashes) if swatch.dashes else "-"
    return SeriesStyle(label, swatch.colour, swatch.marker, line)


def check_drawable() -> None:
    """Raise UsageError unless the drawing libraries are installed."""
    for library in ("matplotlib", "seaborn"):
        if find_spec(library) is None:
            raise UsageError(
                f'figures need the package {library}: pip install "fairbench-llm[plot]"'
            )


def check_plot(path: Path) -> None:
    """Raise UsageError for an unsupported format, a missing folder, or missing libraries."""
    if path.suffix.removeprefix(".") not in FORMATS:
        raise UsageError(f"--plot {path}: must end in .{', .'.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    check_drawable()


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw the figures of the ``with`` block in the style of a paper.

    Files are reproducible: equal figures give equal bytes.
    """
    import seaborn
    from matplotlib import rc_context

    lines: Any = {"lines.markersize": 4.5, "lines.linewidth": 1.2}
    fixed: Any = {"svg.hashsalt": "fairbench", "svg.fonttype": "none", "pdf.fonttype": 42}
    fixed["axes.unicode_minus"] = False  # The fonts of some viewers lack the minus character.
    with (
        rc_context(seaborn.axes_style("whitegrid")),
        rc_context(seaborn.plotting_context("paper")),
        rc_context(lines | fixed),
    ):
        yield


def panels(
    rows: int, columns: int, width_in: float, height_in: float, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure and its panels, indexed ``[row][column]``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def caption(figure: Figure, title: str, provenance: str, legend: Axes, columns: int = 5) -> None:
    """Write a title and a legend above all panels; the panel ``legend`` has the legend's entries.

    ``provenance`` (simulated or measured, hardware, seeds) is written below the panels.
    """
    handles, labels = legend.get_legend_handles_labels()
    longest = max(map(len, labels), default=0) + KEY_LETTERS
    fitting = max(1, int(figure.get_figwidth() * LEGEND_LETTERS_PER_IN / longest))
    columns = min(columns, fitting)
    more_rows = max(0, -(-len(labels) // columns) - 1)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_IN * more_rows)
    figure.legend(
        handles, labels, title=title, title_fontsize=10,
        loc="outside upper center", ncols=columns, frameon=False,
    )  # fmt: skip
    figure.supxlabel(fill(provenance, int(figure.get_figwidth() * LETTERS_PER_IN)), fontsize=7)


LEAST_SPAN = 0.02  # A plot of two metrics spans at least this part of their values.


def plain_span(axes: Axes) -> None:
    """Write the x axis without an offset, and widen axes that magnify negligible differences."""
    axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    for get, put in ((axes.get_xlim, axes.set_xlim), (axes.get_ylim, axes.set_ylim)):
        low, high = get()
        middle = (low + high) / 2
        if high - low < (least := LEAST_SPAN * abs(middle)):
            put(middle - least / 2, middle + least / 2)


def log_y(axes: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers at 1, 2 and 5."""
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.minorticks_off()


def log_x(axes: Axes) -> None:
    """Make the x axis logarithmic with plain numbers at 1, 2 and 5."""
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.minorticks_off()


def _plain_numbers(axis: Axis) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.15g}"))


def save(figure: Figure, paths: Sequence[Path]) -> None:
    """Write a figure to each path, in the format of the path's suffix, without a date.

    Raises UsageError if the labels of a figure leave no room for the axes.
    """
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    for path in paths:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied")
            try:
                figure.savefig(path, dpi=DPI, metadata=undated.get(path.suffix, {}))
            except UserWarning:
                raise UsageError(
                    f"{path}: the names of all configurations do not fit into one picture; plot "
                    "the directory of a single sweep or comparison"
                ) from None


def save_in(figure: Figure, output: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Write the figure as ``NAME.FORMAT`` in each format, and return the files.

    Raises UsageError if the labels leave no room for the axes, or if a file cannot be written.
    """
    paths = [output / f"{name}.{suffix}" for suffix in formats]
    with writing(output, "output_dir"):
        output.mkdir(parents=True, exist_ok=True)
        save(figure, paths)
    return paths


@contextmanager
def drawn_to(path: Path, columns: int, width_in: float, height_in: float) -> Iterator[Any]:
    """Yield a figure and a row of axes to draw on; write the figure to ``path`` afterwards.

    Raises UsageError if the figure cannot be drawn or written.
    """
    check_plot(path)
    with paper_style():
        figure, axes = panels(1, columns, width_in, height_in)
        yield figure, axes[0]
        with writing(path, "--plot"):
            save(figure, [path])
