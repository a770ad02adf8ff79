"""How figures style: readable in print, in grey, and by the colour-blind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
LETTERS_PER_IN = 15  # of the text below figures


class SeriesStyle(NamedTuple):
    """A colour that stays apart for colour-blind readers (Okabe and Ito), and a mark for print."""

    label: str
    colour: str
    marker: str
    line: str = "-"


BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"

SCHEDULERS = {
    "lpm": SeriesStyle("RR + LPM", RED, "s", "--"),
    "vtc": SeriesStyle("VTC", BLUE, "^", "-."),
    "preble": SeriesStyle("Preble", GREEN, "D", ":"),
    "dlpm": SeriesStyle("DLPM", "#000000", "o"),
    "d2lpm": SeriesStyle("D²LPM", "#000000", "o"),
}
CLIENTS = (
    SeriesStyle("client 0", RED, "s", "--"),
    SeriesStyle("client 1", BLUE, "^", "-."),
    SeriesStyle("client 2", GREEN, "D", ":"),
    SeriesStyle("client 3", PURPLE, "o"),
)
HATCHES = ("", "///", "...", "xxx")


def scheduler_style(name: str) -> SeriesStyle:
    """The style of a scheduler's pair; that of an unknown one is grey."""
    return SCHEDULERS.get(name, SeriesStyle(name, "0.5", "x"))


@contextmanager
def paper_style() -> Iterator[None]:
    """Inside, figures are made and saved in the style of a paper, the same bytes every time."""
    import seaborn
    from matplotlib import rc_context

    lines: Any = {"lines.markersize": 4.5, "lines.linewidth": 1.2}
    fixed: Any = {"svg.hashsalt": "fairbench", "svg.fonttype": "none", "pdf.fonttype": 42}
    with (
        rc_context(seaborn.axes_style("whitegrid")),
        rc_context(seaborn.plotting_context("paper")),
        rc_context(lines | fixed),
    ):
        yield


def panels(
    rows: int, columns: int, width_in: float, height_in: float, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes, ``[row][column]``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def caption(figure: Figure, title: str, provenance: str, legend: Axes, columns: int = 5) -> None:
    """Above the panels what they show, with one legend, that of the panel ``legend``.

    Below them ``provenance``, in as many lines as it needs: whether it was measured, on what, and
    which seeds.
    """
    handles, labels = legend.get_legend_handles_labels()
    figure.legend(
        handles, labels, title=title, title_fontsize=10,
        loc="outside upper center", ncols=columns, frameon=False,
    )  # fmt: skip
    figure.supxlabel(fill(provenance, int(figure.get_figwidth() * LETTERS_PER_IN)), fontsize=7)


def log_y(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.15g}"))
    axes.minorticks_off()


def save(figure: Figure, paths: Sequence[Path]) -> None:
    """Write a figure to each of ``paths``, in the format of its suffix, without a date in it."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    for path in paths:
        figure.savefig(path, dpi=DPI, metadata=undated.get(path.suffix, {}))
