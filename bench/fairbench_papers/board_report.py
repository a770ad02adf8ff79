"""The leaderboard as text, Markdown and an HTML page with a chart of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Better, Form
from fairbench.metrics.shown_percentiles import ENOUGH, is_carried
from fairbench.report.comparison_table import QUEUES_EMPTY
from fairbench.report.numbers import UNDEFINED, WRITERS, bounded
from fairbench.report.pages import chart, page
from fairbench.report.pages.markdown import escaped, table
from fairbench.report.table import (
    MAX_WIDTH,
    cut_middle,
    first_fitting,
    plain_table,
    printed,
)
from fairbench.results.comparison import seed_text
from fairbench.results.significance import METHOD, Decision
from fairbench.results.summary import basis
from fairbench_papers.board import (
    Board,
    BoardMetric,
    BoardRow,
    Fold,
    Score,
    holds_lines,
    make_board,
    read_stored,
)

LAYOUTS = tuple((label, ends) for ends in (True, False) for label in (34, 27, 20))
MARKS = {Decision.BETTER: "+", Decision.WORSE: "!", None: " "}
NOISE = "="
ONE_SEED = "One seed cannot show a significant difference: the order may be noise."
STYLES = {"+": "green", "!": "red", NOISE: "dim"}
MOST_NAMED = 12  # A message names at most this number of undefined values or missing runs.
SHARING = (
    "Sharing incentive: latency of the worst-off well-behaved client, divided by its "
    "latency alone on 1/n of the cluster. At most 1 means that sharing pays off for "
    "every client."
)
SHARE = (
    "Minimum fair share of best total: the lowest fraction that a client received of its "
    "max-min fair share, computed from the best total service of any row."
)


def board_text(board: Board, *, colour: bool = False, width: int = MAX_WIDTH) -> str:
    """Return the leaderboard as text whose lines have at most ``width`` characters.

    Names are shortened to fit, but numbers are not.
    """
    _, body = first_fitting(LAYOUTS, lambda one: _rank_table(board, one[0], ends=one[1]), width)
    legend = [Text(line) for line in board_legend(board)]
    heading = Text(board_heading(board), style="bold")
    return printed(Group(heading, Text(), body, Text(), *legend), colour=colour, width=width)


def board_markdown(board: Board) -> str:
    """Return the leaderboard as a GitHub Markdown table, followed by the legend."""
    headings = [
        "rank",
        "scheduler",
        *(column_title(board, one).replace("\n", " ") for one in board.metrics),
    ]
    rows = []
    for row in board.rows:
        cells = [ranks_text(row, board), f"`{row.name}`"]
        for metric in board.metrics:
            one = row.scores[metric.key]
            ends = ends_text(one, metric)
            value = f"{value_text(one, metric)} ({ends})" if ends else value_text(one, metric)
            cells.append(f"{value} {mark_of(one, row, board)}")
        rows.append(cells)
    lines = [escaped(board_heading(board)), "", *table(headings, rows, str), ""]
    return "\n".join([*lines, *(f"- {escaped(line)}" for line in board_legend(board))]) + "\n"


def ranks_text(row: BoardRow, board: Board) -> str:
    """Return a rank as ``3``, or as ``3-6`` if differences to other ranks are not significant."""
    if row.ranks is None:
        return UNDEFINED
    if len(board.seeds) == 1:
        return str(row.ranks.rank)
    first, last = row.ranks.first, row.ranks.last
    return str(first) if first == last else f"{first}-{last}"


def board_heading(board: Board) -> str:
    """Return one line with the leaderboard's hardware, configurations, seeds and intervals."""
    count = len(board.places)
    where = board.places[0] if count == 1 else f"{count} configurations"
    seeds = seed_text(board.seeds)
    method = f": {METHOD}" if len(board.seeds) > 1 else ""
    return f"{basis(board.summary)}; {where}, {seeds}{method}"


def _rank_table(board: Board, label: int, *, ends: bool) -> Table:
    """Return the table of ranks and values; row names have at most ``label`` characters.

    If ``ends`` is True, all metrics show their intervals, not only the first metric.
    """
    found = plain_table(gap=1)
    found.add_column("rank", no_wrap=True)
    found.add_column("", no_wrap=True)
    for metric in board.metrics:
        found.add_column(column_title(board, metric), justify="right", no_wrap=True)
        if ends or metric is board.metrics[0]:
            found.add_column("", no_wrap=True)
    for row in board.rows:
        cells: list[Text] = []
        for metric in board.metrics:
            one = row.scores[metric.key]
            mark = mark_of(one, row, board)
            cells.append(Text.assemble(value_text(one, metric), (mark, STYLES.get(mark, ""))))
            if ends or metric is board.metrics[0]:
                cells.append(Text(ends_text(one, metric), style="dim"))
        found.add_row(ranks_text(row, board), Text(folded_name(row.name, label)), *cells)
    return found


def folded_name(name: str, width: int) -> str:
    """Fold a name into lines of at most ``width`` characters, after a space, a + or a slash.

    A word that is longer than a line is broken at the end of the line.
    """
    lines, line = [], ""
    for part in re.split(r"(?<=[ +/])", name):
        if line and len((line + part).rstrip()) > width:
            lines.append(line)
            line = ""
        line += part
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = line[width:]
    return "\n".join(one.rstrip() for one in [*lines, line])


def column_title(board: Board, metric: BoardMetric) -> str:
    """Return the title of a metric's column, with the unit or the baseline on a second line."""
    entry = CATALOGUE[metric.key]
    words = (entry.column or entry.heading).removesuffix(f"\n{entry.unit}")
    unit = f"/ {board.baseline}" if metric.fold is Fold.RATIO else entry.unit
    return f"{words}\n{unit}".rstrip()


def mark_of(one: Score, row: BoardRow, board: Board) -> str:
    """Return the mark of a scheduler's difference from the baseline, "=" if not significant.

    The mark of the baseline itself is a space.
    """
    return " " if row.name == board.baseline else MARKS.get(one.against, NOISE)


def value_text(one: Score, metric: BoardMetric) -> str:
    """Return a value as text in the metric's format.

    Lower bounds are written as ``> x``, and ratios have two decimals.
    """
    if not one.bound:
        return _metric_number(one.value, metric)
    digits = 2 if metric.fold is Fold.RATIO else None
    return bounded(one.value, one.bound, CATALOGUE[metric.key].form, digits)


def ends_text(one: Score, metric: BoardMetric) -> str:
    """Return an interval as ``low-high``, or as ``> low`` or ``< high`` if one end is unknown."""
    if one.low is None and one.high is None:
        return ""
    if one.low is not None and one.high is not None:
        low, high = (_metric_number(end, metric) for end in (one.low, one.high))
        return f"{low.removesuffix('%')}-{high}"
    sign, end = (">", one.low) if one.low is not None else ("<", one.high)
    return f"{sign} {_metric_number(end, metric)}"


def _metric_number(value: float | None, metric: BoardMetric) -> str:
    if metric.fold is Fold.RATIO and value is not None:
        return f"{value:,.2f}"
    form = CATALOGUE[metric.key].form
    return WRITERS[Form.WHOLE_PERCENT if form is Form.PERCENT else form](value)


def board_legend(board: Board) -> Iterator[str]:
    """Yield sentences that explain the leaderboard's columns and its missing values."""
    first = board.metrics[0]
    entry = CATALOGUE[first.key]
    best = "most" if entry.better is Better.MORE else "least"
    yield (
        f"Sorted by {entry.heading}, {best} first. Compared with {board.baseline}, paired "
        f"by seed: + better, ! worse, {NOISE} not significant at 95%."
    )
    if len(board.seeds) > 1:
        yield (
            "Ranks: the range is the ranks that a row may have within the noise. About 1 "
            "in 20 pairs of equal rows still shows a difference by chance."
        )
    else:
        yield ONE_SEED
    if len(board.places) > 1:
        yield f"Over {len(board.places)} configurations: {', '.join(board.places)}."
        yield from _folds(board)
    yield SHARE
    yield SHARING
    tail = max((CATALOGUE[one.key].tail for one in board.metrics), default=0)
    if board.fewest is not None and tail:
        few = "" if is_carried(board.fewest, tail) else f"; it needs about {ENOUGH[tail]}"
        yield f"P{tail}: each client has at least {board.fewest:,} latencies{few}."
    for metric in board.metrics:
        for place, reason in metric.left_out.items():
            yield f"{CATALOGUE[metric.key].heading}: without {place}: {reason or 'no values'}."
    yield from _holes(board)


def _folds(board: Board) -> Iterator[str]:
    for fold in dict.fromkeys(one.fold for one in board.metrics):
        names = [CATALOGUE[one.key].heading for one in board.metrics if one.fold is fold]
        yield f"{', '.join(names)}: {fold.value}."


def _holes(board: Board) -> Iterator[str]:
    """Yield sentences that explain undefined numbers and name missing runs."""
    undefined: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        for key, one in row.scores.items():
            if one.value is None and one.reason:
                undefined.setdefault((one.reason, CATALOGUE[key].heading), []).append(row.name)
    yield from _some(
        [
            f"Undefined: {words} of {', '.join(names)}: {why}."
            for (why, words), names in undefined.items()
        ]
    )
    if board.demand_limited:
        where = ", ".join(board.demand_limited)
        yield f"{QUEUES_EMPTY} under some scheduler: {where}."
    yield from _some([f"Not ranked: {a} has no run for {b}." for a, b in board.incomplete.items()])
    yield from _some([f"Missing: {point}: {reason}." for point, reason in board.missing])


def _some(lines: list[str]) -> Iterator[str]:
    yield from lines[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        yield f"{lines[0].partition(':')[0]}: {len(lines) - MOST_NAMED} more."


SHOWN = 3  # number of metrics in the table of ranks; more do not fit on a phone's screen
MOST_CARDS = 5  # The page has cards for the baseline and for at most this number of schedulers.
MOST_LEADERS = 3  # The title of a leaderboard's page names at most this number of schedulers.
# A picture with at most ``MOST_LABELLED`` schedulers shows their names, cut to ``LABEL_CHARACTERS``
# characters. A picture with more than ``MOST_LABELLED`` schedulers shows a number for each
# scheduler instead.
MOST_LABELLED, LABEL_CHARACTERS = 8, 16
FEWEST_FOR_QUARTILES = 8
# A picture omits outliers: values more than three interquartile ranges below the first or above the
# third quartile.
FAR = 3.0
MARKED_AS = {"+": "best", "!": "worst"}


def page_of_file(path: Path) -> page.Page | None:
    """Return the page of a CSV file with the runs of a leaderboard; None for any other file."""
    return board_page(make_board(read_stored([path]).lines)) if holds_lines(path) else None


def board_page(board: Board) -> page.Page:
    """Return the page of a leaderboard, with its title, cards, pictures and tables."""
    pictures: list[page.Block] = list(_pictures(board))
    cost = [page.Section("Rank against throughput and latency", pictures)] if pictures else []
    rest = board.metrics[SHOWN:]
    more = [page.Section("More metrics", [_grid(board, rest)], folded=True)] if rest else []
    warnings = [ONE_SEED] if len(board.seeds) == 1 else []
    warnings += [
        f"{name} is not ranked: no run for {gap}." for name, gap in board.incomplete.items()
    ]
    marks = page.Paragraph(
        f"▲ significantly better than {board.baseline}, ▼ significantly worse (95%, paired by "
        "seed); no mark: inconclusive. Below a value: its 95% interval. Below a name: the ranks "
        "that the row may have within the noise."
    )
    return page.Page(
        title=board_title(board),
        provenance=f"{board_heading(board)}.",
        headlines=list(_board_cards(board)),
        warnings=warnings,
        sections=[
            *cost,
            page.Section("Ranks", [marks, _grid(board, board.metrics[:SHOWN])]),
            *more,
            page.Section("How to read the table", [page.Bullets(list(board_legend(board)))]),
        ],
    )


def board_title(board: Board) -> str:
    """Return one line that names the schedulers that may have rank 1."""
    first = board.metrics[0]
    entry = CATALOGUE[first.key]
    what = f"{'highest' if entry.better is Better.MORE else 'lowest'} {entry.heading}"
    leaders = [row for row in board.rows if row.ranks is not None and row.ranks.first == 1]
    if not leaders:
        return f"No scheduler has a {entry.heading}"
    value = _value(leaders[0], first, board)
    if len(leaders) == 1:
        return f"{leaders[0].name} has the {what}: {value}"
    if len(leaders) > MOST_LEADERS:
        return f"{leaders[0].name} has the {what}, {value}, but {len(leaders)} may be first"
    names = ", ".join(row.name for row in leaders[:-1])
    return f"{names} or {leaders[-1].name} has the {what}: {value}, no significant difference"


def _board_cards(board: Board) -> Iterator[page.Headline]:
    """Yield a card with name and main values for each of the best schedulers and the baseline."""
    shown = list(enumerate(board.rows, 1))
    cards = [one for one in shown if one[0] <= MOST_CARDS or one[1].name == board.baseline]
    for number, row in cards:
        also = "; ".join(_also(row, one, board) for one in board.metrics[1:SHOWN])
        value = _value(row, board.metrics[0], board)
        yield page.Headline(
            f"{number}. {row.name}", value, "baseline" if row.name == board.baseline else also
        )


def _also(row: BoardRow, metric: BoardMetric, board: Board) -> str:
    title = column_title(board, metric)
    measured = metric.fold is Fold.RATIO or CATALOGUE[metric.key].unit
    words = (title.rpartition("\n")[0] if measured else title).replace("\n", " ")
    return f"{words} {_value(row, metric, board)}"


def _value(row: BoardRow, metric: BoardMetric, board: Board) -> str:
    value = value_text(row.scores[metric.key], metric)
    if metric.fold is Fold.RATIO:
        return f"{value} x {board.baseline}"
    unit = CATALOGUE[metric.key].unit
    return f"{value} {unit}" if unit else value


def _grid(board: Board, metrics: Sequence[BoardMetric]) -> page.Grid:
    titles = [column_title(board, one).replace("\n", " ") for one in metrics]
    rows = []
    for number, row in enumerate(board.rows, 1):
        ranks = ranks_text(row, board)
        noise = f"rank {ranks}" if "-" in ranks[1:] else ""
        cells = [page.Cell(f"{number}.\u00a0{row.name}", detail=noise)]
        for metric in metrics:
            one = row.scores[metric.key]
            mark = MARKED_AS.get(mark_of(one, row, board), "")
            cells.append(page.Cell(value_text(one, metric), mark, ends_text(one, metric)))
        rows.append(cells)
    return page.Grid(["", *titles], rows)


class _Row(NamedTuple):
    """A leaderboard row that is drawn as a marker in a chart.

    ``strong`` is True if no other scheduler is better than this one in both metrics of the chart.
    """

    number: int
    name: str
    x: float
    y: float
    strong: bool = False


def _pictures(board: Board) -> Iterator[page.Figure]:
    """Yield a chart of the leaderboard's first metric against each of its next two metrics."""
    first = board.metrics[0]
    for other in board.metrics[1:SHOWN]:
        rows, left_out = _picture_rows(board, first, other)
        if len(rows) > 1:
            named = len(rows) <= MOST_LABELLED
            labels = [cut_middle(one.name, LABEL_CHARACTERS) for one in rows]
            chart = rank_chart(
                f"{CATALOGUE[first.key].heading} against {CATALOGUE[other.key].heading}",
                [
                    Labelled(label if named else f"{one.number}", one.x, one.y, one.strong)
                    for label, one in zip(labels, rows, strict=True)
                ],
                _axis(board, other),
                _axis(board, first),
            )
            yield page.Figure(chart, _caption(rows, left_out, first, other))


def _axis(board: Board, metric: BoardMetric) -> PlotAxis:
    entry = CATALOGUE[metric.key]
    if metric.fold is Fold.RATIO:
        return PlotAxis(f"{entry.heading}, x {board.baseline}", entry.better is Better.LESS)
    unit = "%" if entry.form.is_share else entry.unit
    return PlotAxis(f"{entry.heading}{f', {unit}' if unit else ''}")


def _picture_rows(
    board: Board, first: BoardMetric, other: BoardMetric
) -> tuple[list[_Row], list[str]]:
    """Return the rows that a chart can show, and the names of the rows that it leaves out."""
    by_x, by_y = [CATALOGUE[one.key] for one in (other, first)]
    across, up = by_x.form.factor, by_y.form.factor
    known = []
    for number, row in enumerate(board.rows, 1):
        x, y = (row.scores[one.key].value for one in (other, first))
        if x is not None and y is not None:
            known.append(_Row(number, row.name, x * across, y * up))
    far = _far([one.x for one in known]) | _far([one.y for one in known])
    near = [one for at, one in enumerate(known) if at not in far]
    signs = [1 if one.better is Better.MORE else -1 for one in (by_x, by_y)]
    rows = [one._replace(strong=not any(_beats(two, one, signs) for two in near)) for one in near]
    drawn = {one.number for one in near}
    out = [f"{n} {row.name}" for n, row in enumerate(board.rows, 1) if n not in drawn]
    return rows, out


def _far(values: Sequence[float]) -> set[int]:
    """Return the indices of outliers, which lie far outside the quartiles (see ``FAR``)."""
    if len(values) < FEWEST_FOR_QUARTILES:
        return set()
    low, _, high = quantiles(values)
    least, most = low - FAR * (high - low), high + FAR * (high - low)
    return {at for at, value in enumerate(values) if not least <= value <= most and high > low}


def _beats(one: _Row, other: _Row, signs: Sequence[int]) -> bool:
    return signs[0] * (one.x - other.x) > 0 and signs[1] * (one.y - other.y) > 0


def _caption(
    rows: Sequence[_Row], left_out: Sequence[str], first: BoardMetric, other: BoardMetric
) -> str:
    up = "top" if CATALOGUE[first.key].better is Better.MORE else "bottom"
    side = "right" if CATALOGUE[other.key].better is Better.MORE else "left"
    strong = "; ".join(f"{one.number} {one.name}" for one in rows if one.strong)
    numbers = " Numbers: rows of the table below." if len(rows) > MOST_LABELLED else ""
    out = f" Outside the picture or undefined: {'; '.join(left_out)}." if left_out else ""
    return (
        f"The best is at the {up} {side}.{numbers} "
        f"Coloured, because no other row is better in both: {strong}.{out}"
    )


TOP, PLOT_PX, BELOW_PX = 24, 330, 44
RADIUS = 3.0
MARGIN = 0.06  # An axis extends beyond the values by this fraction of their range at both ends.
# On a phone, a letter of a label is at most 8.8 pixels wide and 13 pixels high.
LETTER_PX, TEXT_PX = 8.8, 13.0
# A label moves away from its mark in steps of 4 pixels, at most 15 times.
STEP_PX, MOST_STEPS = 4.0, 16
LEADER_FROM = 2  # A line joins a label to its mark after a move of at least this many steps.


class Labelled(NamedTuple):
    """A labelled mark of a chart, coloured if ``strong`` is True."""

    label: str
    x: float
    y: float
    strong: bool = False


class PlotAxis(NamedTuple):
    """An axis of the chart; if ``log`` is True, the axis is logarithmic."""

    label: str
    log: bool = False


class Box(NamedTuple):
    """The rectangle of a label or mark in the chart, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Return whether two boxes of the chart overlap."""
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def rank_chart(title: str, marks: Sequence[Labelled], x_axis: PlotAxis, y_axis: PlotAxis) -> str:
    """Draw a chart of at least one mark, and move the labels until none overlap."""
    bottom = TOP + PLOT_PX
    across = chart.Scale(
        *_axis_range([one.x for one in marks], x_axis), chart.LEFT, chart.END, x_axis.log
    )
    up = chart.Scale(*_axis_range([one.y for one in marks], y_axis), bottom, TOP, y_axis.log)
    parts = chart.vertical_axis(up, y_axis.label)
    parts += chart.horizontal_axis(across, TOP, bottom, x_axis.label)
    spots = [(across.pixel_of(one.x), up.pixel_of(one.y)) for one in marks]
    taken = [Box(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y in spots]
    frame = Box(chart.LEFT, TOP, chart.END, bottom)
    leaders, drawn = [], []
    for one, (x, y) in zip(marks, spots, strict=True):
        box, steps = free_box(x, y, LETTER_PX * len(one.label), taken, frame)
        taken.append(box)
        middle = (box.left + box.right) / 2
        if steps >= LEADER_FROM:
            leaders.append(chart.line(x, y, middle, (box.top + box.bottom) / 2, "leader"))
        kind = "dot strong" if one.strong else "dot"
        drawn.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS:g}" class="{kind}"/>'
            + chart.text(middle, box.bottom - 2, one.label, "middle")
        )
    return chart.drawing(bottom + BELOW_PX, title, [*parts, *leaders, *drawn])


def _axis_range(values: Sequence[float], axis: PlotAxis) -> tuple[float, float]:
    if axis.log:
        return chart.log_range(values)
    low, high = min(values), max(values)
    free = MARGIN * (high - low) or abs(high) / 10 or 1.0
    return low - free, high + free


def free_box(x: float, y: float, wide: float, taken: Sequence[Box], frame: Box) -> tuple[Box, int]:
    """Return the free rectangle nearest to a mark, and the number of steps to the rectangle."""
    for steps, box in _boxes(x, y, wide):
        inside = box.left > frame.left and box.right < frame.right
        inside = inside and box.top > frame.top and box.bottom < frame.bottom
        if inside and not any(box.meets(other) for other in taken):
            return box, steps
    return Box(x + RADIUS, y - TEXT_PX / 2, x + RADIUS + wide, y + TEXT_PX / 2), 0


def _boxes(x: float, y: float, wide: float) -> Iterator[tuple[int, Box]]:
    """Yield rectangles beside, above, below and at the corners of a mark, nearest first."""
    sides = sorted(product((1, -1, 0), (0, -1, 1)), key=lambda side: abs(side[0]) + abs(side[1]))
    for steps in range(1, MOST_STEPS):
        far = RADIUS + STEP_PX * (steps - 1) + 1
        for right, down in sides[1:]:
            middle_x = x + right * (far + wide / 2)
            middle_y = y + down * (far + TEXT_PX / 2)
            yield (
                steps,
                Box(
                    *(middle_x - wide / 2, middle_y - TEXT_PX / 2),
                    *(middle_x + wide / 2, middle_y + TEXT_PX / 2),
                ),
            )
