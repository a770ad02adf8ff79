"""The leaderboard's picture: a numbered marker per row, and a list of the rows' names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fairbench.report.palette import BLUE, GREEN, VERMILION
from fairbench_papers.board_report import LEADER_FROM, RADIUS, Box, free_box
from fairbench_papers.style import paper_style, save
from fairbench_studies.kit.rows import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE = ROOT / "plots/leaderboard.svg"
BASELINE = "fcfs"
# Each kind of scheduler has its own marker shape, so the picture can be read without colour.
KINDS = {
    "queue before the cluster": (VERMILION.colour, "s"),
    "fair local scheduler": (BLUE.colour, "o"),
    "router that looks at prefixes": (GREEN.colour, "^"),
    "other": ("0.35", "D"),
}
FAIR = (
    *("vtc", "dlpm", "lcf", "mdrr", "equinox", "fairserve", "rpm"),
    *("d2lpm", "fair-finish", "preble-dlpm"),
)
PLAIN = (
    *(BASELINE, "lpm", "least-loaded+fcfs", "power-of-two+fcfs", "vtc-basic+fcfs"),
    *("round-robin+justitia", "round-robin+autellix"),
)
WIDTH_IN, HEIGHT_IN = 8.5, 8.4
# The list below the plot has ``COLUMNS`` columns that are ``LIST_IN`` inches wide. Each line of the
# list is ``LINE_IN`` inches high.
COLUMNS, LIST_IN, LINE_IN = 3, 2.75, 0.15
POINTS = 72  # typographic points in an inch
DIGIT_POINTS = 5.6  # width of a digit of 8-point type in points


class View(NamedTuple):
    """A plot of the leaderboard: its ranges of x and y, its position, and its size in inches."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: float
    bottom: float
    wide: float
    high: float

    def shows(self, point: Point) -> bool:
        """Return whether a point lies within the view's ranges of x and y."""
        return self.x[0] < point.service < self.x[1] and self.y[0] < point.share < self.y[1]


WHOLE = View((0.7, 1.3), (0.4, 1.0), 0.7, 2.85, 7.6, 5.2)
# An inset enlarges ``CLOSE``, a region of the plot with many points.
CLOSE = View((1.127, 1.148), (0.8, 0.856), 1.25, 6.05, 2.9, 1.95)


class Point(NamedTuple):
    """A row of the leaderboard: service relative to the baseline, and minimum fair share."""

    row: str
    service: float
    share: float


def kind(row: str) -> str:
    """Return the kind (a key of ``KINDS``) of the scheduler that a leaderboard row names."""
    if " behind " in row:
        return "queue before the cluster"
    if row.rpartition("+")[2].removesuffix("-predict").removesuffix("-upstream") in FAIR:
        return "fair local scheduler"
    return "other" if row in PLAIN else "router that looks at prefixes"


def draw(points: Sequence[Point]) -> None:
    """Draw the leaderboard: minimum fair share against service, with a numbered marker per row.

    Args:
        points: The leaderboard's rows. The first row gets the marker number 1.
    """
    from matplotlib.figure import Figure

    with paper_style():
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN))
        whole, close = (_axes(figure, view, points) for view in (WHOLE, CLOSE))
        whole.set(xlabel=f"service, times that of {BASELINE} (geometric mean, nine configurations)")
        whole.set(ylabel="minimum fair share of best total (mean, nine configurations)")
        whole.legend(frameon=False, loc="lower right", fontsize=8)
        whole.set_title("Simulated, A100, two replicas, five seeds", fontsize=9, loc="left")
        whole.indicate_inset((CLOSE.x[0], CLOSE.y[0], *_size(CLOSE)), close, edgecolor="0.3")
        close.tick_params(labelsize=7)
        close.locator_params(axis="x", nbins=4)
        _list(figure, points)
        save(figure, [FIGURE])


def _size(view: View) -> tuple[float, float]:
    return view.x[1] - view.x[0], view.y[1] - view.y[0]


def _axes(figure: Figure, view: View, points: Sequence[Point]) -> Axes:
    across, up = WIDTH_IN, HEIGHT_IN
    axes = figure.add_axes(
        (view.left / across, view.bottom / up, view.wide / across, view.high / up)
    )
    for which, (colour, marker) in KINDS.items():
        shown = [point for point in points if view.shows(point) and kind(point.row) == which]
        xs, ys = [point.service for point in shown], [point.share for point in shown]
        axes.scatter(xs, ys, s=26, c=colour, marker=marker, label=which)
    axes.set(xlim=view.x, ylim=view.y)
    axes.yaxis.set_major_formatter("{x:.0%}")
    for x, y, number, leads in placed(points, view):
        axes.annotate(
            str(number), (points[number - 1].service, points[number - 1].share), (x, y),
            textcoords="axes points", ha="center", va="center", fontsize=8,
            arrowprops={"arrowstyle": "-", "lw": 0.6, "color": "0.3"} if leads else None,
        )  # fmt: skip
    return axes


def placed(points: Sequence[Point], view: View) -> Iterator[tuple[float, float, int, bool]]:
    """Place the numbers of markers so that no number covers a marker or another number.

    Yields the position of a number (in typographic points from the lower left corner), the number,
    and whether a line joins the number to its marker. In the view ``WHOLE``, markers in the dense
    region ``CLOSE`` get no numbers.
    """
    wide, high = POINTS * view.wide, POINTS * view.high
    spots = {
        number: (
            wide * (point.service - view.x[0]) / _size(view)[0],
            # In a ``Box``, y is measured from the top.
            high * (view.y[1] - point.share) / _size(view)[1],
        )
        for number, point in enumerate(points, 1)
        if view.shows(point)
    }
    taken = [Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in spots.values()]
    for number, (x, y) in spots.items():
        if view is WHOLE and CLOSE.shows(points[number - 1]):
            continue
        wide_number = DIGIT_POINTS * len(str(number))
        box, steps = free_box(x, y, wide_number, taken, Box(0, 0, wide, high))
        taken.append(box)
        middle = (box.left + box.right) / 2, high - (box.top + box.bottom) / 2
        yield *middle, number, steps >= LEADER_FROM


def named(point: Point) -> str:
    """Return a row's name, with the row's values if they lie outside the picture's axes."""
    name = re.sub(r"^llm-d\+fcfs behind (.*) by (\w+)$", r"\1 before llm-d (\2)", point.row)
    return name if WHOLE.shows(point) else f"{name} (at {point.service:.2f}, {point.share:.0%})"


def _list(figure: Figure, points: Sequence[Point]) -> None:
    lines = -(-len(points) // COLUMNS)
    axes = figure.add_axes((0, 0, 1, (lines + 1) * LINE_IN / HEIGHT_IN))
    axes.set(xlim=(0, WIDTH_IN), ylim=((lines + 1) * LINE_IN, 0))
    axes.axis("off")
    for at, point in enumerate(points):
        column, line = divmod(at, lines)
        x, y = 0.35 + LIST_IN * column, LINE_IN * (line + 0.5)
        colour, marker = KINDS[kind(point.row)]
        axes.text(x, y, f"{at + 1}", fontsize=7.5, ha="right", va="center")
        axes.scatter([x + 0.1], [y], s=16, c=colour, marker=marker)
        axes.text(x + 0.2, y, named(point), fontsize=7.5, va="center")
