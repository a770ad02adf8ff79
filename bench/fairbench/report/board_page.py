"""The page of a leaderboard: which scheduler is best, at which cost, then all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import quantiles
from typing import NamedTuple

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Better
from fairbench.report.board_table import (
    board_heading,
    board_legend,
    column_title,
    ends_text,
    mark_of,
    ranks_text,
    value_text,
)
from fairbench.report.pages.chart_ranks import Labelled, PlotAxis, rank_chart
from fairbench.report.pages.page import (
    Block,
    Bullets,
    Cell,
    Figure,
    Grid,
    Headline,
    Page,
    Paragraph,
    Section,
)
from fairbench.report.table import cut_middle
from fairbench.results.board import Board, BoardMetric, BoardRow, Fold

SHOWN = 3  # number of metrics in the table; phones show this many columns unchanged
MOST_CARDS = 5  # number of best rows that have a card, without the baseline
MOST_LEADERS = 3  # number of rows that the title names
# limits: rows with names in a picture, and characters of a name
MOST_NAMED, LABEL_CHARACTERS = 8, 16
FEWEST_FOR_QUARTILES = 8
FAR = 3.0  # a value farther from the quartiles than this many interquartile ranges is left out
MARKS = {"+": "best", "!": "worst"}


def board_page(board: Board) -> Page:
    """Return the page of a leaderboard, with its title, cards, pictures and tables."""
    pictures: list[Block] = list(_pictures(board))
    cost = [Section("Rank against throughput and latency", pictures)] if pictures else []
    rest = board.metrics[SHOWN:]
    more = [Section("More metrics", [_grid(board, rest)], folded=True)] if rest else []
    return Page(
        title=board_title(board),
        provenance=f"{board_heading(board)}.",
        headlines=list(_board_cards(board)),
        warnings=list(_warnings(board)),
        sections=[
            *cost,
            Section("Ranks", [Paragraph(_marks(board)), _grid(board, board.metrics[:SHOWN])]),
            *more,
            Section("How to read the table", [Bullets(list(board_legend(board)))]),
        ],
    )


def board_title(board: Board) -> str:
    """Return one line that names the rows whose rank may be 1."""
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


def _board_cards(board: Board) -> Iterator[Headline]:
    """Yield a card for each of the best rows, and for the baseline."""
    shown = list(enumerate(board.rows, 1))
    cards = [one for one in shown if one[0] <= MOST_CARDS or one[1].name == board.baseline]
    for number, row in cards:
        also = "; ".join(_also(row, one, board) for one in board.metrics[1:SHOWN])
        value = _value(row, board.metrics[0], board)
        yield Headline(
            f"{number}. {row.name}", value, "baseline" if row.name == board.baseline else also
        )


def _also(row: BoardRow, metric: BoardMetric, board: Board) -> str:
    title = column_title(board, metric)
    measured = metric.fold is Fold.RATIO or CATALOGUE[metric.key].unit
    words = (title.rpartition("\n")[0] if measured else title).replace("\n", " ")
    return f"{words} {_value(row, metric, board)}"


def _value(row: BoardRow, metric: BoardMetric, board: Board) -> str:
    """Return a value with its unit, or as a multiple of the baseline's value."""
    value = value_text(row.scores[metric.key], metric)
    if metric.fold is Fold.RATIO:
        return f"{value} x {board.baseline}"
    unit = CATALOGUE[metric.key].unit
    return f"{value} {unit}" if unit else value


def _warnings(board: Board) -> Iterator[str]:
    if len(board.seeds) == 1:
        yield "One seed cannot show a significant difference: the order may be noise."
    for name, lacks in board.incomplete.items():
        yield f"{name} is not ranked: no run for {lacks}."


def _marks(board: Board) -> str:
    return (
        f"▲ significantly better than {board.baseline}, ▼ significantly worse (95%, paired by "
        "seed); no mark: inconclusive. Below a value: its 95% interval. Below a name: the ranks "
        "that the row may have within the noise."
    )


def _grid(board: Board, metrics: Sequence[BoardMetric]) -> Grid:
    titles = [column_title(board, one).replace("\n", " ") for one in metrics]
    rows = [
        [
            Cell(f"{number}.\u00a0{row.name}", detail=_noise(row, board)),
            *(_grid_cell(row, one, board) for one in metrics),
        ]
        for number, row in enumerate(board.rows, 1)
    ]
    return Grid(["", *titles], rows)


def _noise(row: BoardRow, board: Board) -> str:
    ranks = ranks_text(row, board)
    return f"rank {ranks}" if "-" in ranks[1:] else ""


def _grid_cell(row: BoardRow, metric: BoardMetric, board: Board) -> Cell:
    one = row.scores[metric.key]
    mark = MARKS.get(mark_of(one, row, board), "")
    return Cell(value_text(one, metric), mark, ends_text(one, metric))


class _Row(NamedTuple):
    """A row in a picture; ``strong`` if no other row is better in both metrics of the picture."""

    number: int
    name: str
    x: float
    y: float
    strong: bool = False


def _pictures(board: Board) -> Iterator[Figure]:
    """Yield a picture of the first metric against each of the next two, with a mark per row."""
    first = board.metrics[0]
    for other in board.metrics[1:SHOWN]:
        rows, left_out = _picture_rows(board, first, other)
        if len(rows) > 1:
            chart = rank_chart(
                f"{CATALOGUE[first.key].heading} against {CATALOGUE[other.key].heading}",
                [Labelled(_row_label(one, len(rows)), one.x, one.y, one.strong) for one in rows],
                _axis(board, other),
                _axis(board, first),
            )
            yield Figure(chart, _caption(rows, left_out, first, other))


def _row_label(row: _Row, rows: int) -> str:
    """Return the name of a row, or its number if there are too many rows for names."""
    return cut_middle(row.name, LABEL_CHARACTERS) if rows <= MOST_NAMED else f"{row.number}"


def _axis(board: Board, metric: BoardMetric) -> PlotAxis:
    entry = CATALOGUE[metric.key]
    if metric.fold is Fold.RATIO:
        return PlotAxis(f"{entry.heading}, x {board.baseline}", entry.better is Better.LESS)
    unit = "%" if entry.form.is_share else entry.unit
    return PlotAxis(f"{entry.heading}{f', {unit}' if unit else ''}")


def _picture_rows(
    board: Board, first: BoardMetric, other: BoardMetric
) -> tuple[list[_Row], list[str]]:
    """Return the rows of a picture, and the names of the rows that the picture leaves out."""
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
    """Return the positions of values far outside the quartiles."""
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
    numbers = " Numbers: rows of the table below." if len(rows) > MOST_NAMED else ""
    out = f" Outside the picture or undefined: {'; '.join(left_out)}." if left_out else ""
    return (
        f"The best is at the {up} {side}.{numbers} "
        f"Coloured, because no other row is better in both: {strong}.{out}"
    )
