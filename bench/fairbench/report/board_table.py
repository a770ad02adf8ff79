"""The leaderboard as text: a row per scheduler, with significant differences marked."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.metric import Better, Form
from fairbench.metrics.shown_percentiles import ENOUGH, is_carried
from fairbench.report.comparison_table import QUEUES_EMPTY
from fairbench.report.numbers import UNDEFINED, WRITERS, bounded
from fairbench.report.pages.markdown import escaped, table
from fairbench.report.table import MAX_WIDTH, first_fitting, folded_name, plain_table, printed
from fairbench.results.board import Board, BoardMetric, BoardRow, Fold, Score
from fairbench.results.comparison import seed_text
from fairbench.results.intervals import METHOD, Decision
from fairbench.results.summary import basis

LAYOUTS = tuple((label, ends) for ends in (True, False) for label in (34, 27, 20))
MARKS = {Decision.BETTER: "+", Decision.WORSE: "!", None: " "}
NOISE = "="
STYLES = {"+": "green", "!": "red", NOISE: "dim"}
MOST_NAMED = 12  # limit on undefined numbers, and on missing runs, that are listed by name
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
    """Return the leaderboard in lines of at most ``width`` characters; numbers are never cut."""
    _, body = first_fitting(LAYOUTS, lambda one: _rank_table(board, one[0], ends=one[1]), width)
    legend = [Text(line) for line in board_legend(board)]
    heading = Text(board_heading(board), style="bold")
    return printed(Group(heading, Text(), body, Text(), *legend), colour=colour, width=width)


def board_markdown(board: Board) -> str:
    """Return the leaderboard as a GitHub Markdown table, with the legend below."""
    headings = [
        "rank",
        "scheduler",
        *(column_title(board, one).replace("\n", " ") for one in board.metrics),
    ]
    rows = [
        [
            ranks_text(row, board),
            f"`{row.name}`",
            *(_metric_cell(row, one, board) for one in board.metrics),
        ]
        for row in board.rows
    ]
    lines = [escaped(board_heading(board)), "", *table(headings, rows, str), ""]
    return "\n".join([*lines, *(f"- {escaped(line)}" for line in board_legend(board))]) + "\n"


def ranks_text(row: BoardRow, board: Board) -> str:
    """Return the rank as ``3``, or as ``3-6`` if the difference is not significant."""
    if row.ranks is None:
        return UNDEFINED
    if len(board.seeds) == 1:
        return str(row.ranks.rank)
    first, last = row.ranks.first, row.ranks.last
    return str(first) if first == last else f"{first}-{last}"


def board_heading(board: Board) -> str:
    """Return the hardware, configurations, seeds and intervals on which the leaderboard rests."""
    count = len(board.places)
    where = board.places[0] if count == 1 else f"{count} configurations"
    seeds = seed_text(board.seeds)
    method = f": {METHOD}" if len(board.seeds) > 1 else ""
    return f"{basis(board.summary)}; {where}, {seeds}{method}"


def _rank_table(board: Board, label: int, *, ends: bool) -> Table:
    """Return a table with names of at most ``label`` characters; ``ends`` adds interval ends."""
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


def column_title(board: Board, metric: BoardMetric) -> str:
    """Return the title of a metric's column, with its unit or its baseline below."""
    entry = CATALOGUE[metric.key]
    words = (entry.column or entry.heading).removesuffix(f"\n{entry.unit}")
    unit = f"/ {board.baseline}" if metric.fold is Fold.RATIO else entry.unit
    return f"{words}\n{unit}".rstrip()


def _metric_cell(row: BoardRow, metric: BoardMetric, board: Board) -> str:
    one = row.scores[metric.key]
    ends = ends_text(one, metric)
    return f"{value_text(one, metric)}{f' ({ends})' if ends else ''} {mark_of(one, row, board)}"


def mark_of(one: Score, row: BoardRow, board: Board) -> str:
    """Return the mark of a significant difference from the baseline, "" for the baseline itself."""
    return " " if row.name == board.baseline else MARKS.get(one.against, NOISE)


def value_text(one: Score, metric: BoardMetric) -> str:
    """Return a number in the metric's format; ratios have two decimals, and a bound is ``> x``."""
    if not one.bound:
        return _metric_number(one.value, metric)
    digits = 2 if metric.fold is Fold.RATIO else None
    return bounded(one.value, one.bound, CATALOGUE[metric.key].form, digits)


def ends_text(one: Score, metric: BoardMetric) -> str:
    """Return the interval as ``low-high``, or as ``> low`` or ``< high`` if one end is unknown."""
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
        yield "One seed cannot show a significant difference: the order may be noise."
    if len(board.places) > 1:
        yield f"Over {len(board.places)} configurations: {', '.join(board.places)}."
        yield from _folds(board)
    yield SHARE
    yield SHARING
    yield from _carried(board)
    for metric in board.metrics:
        for place, reason in metric.left_out.items():
            yield f"{CATALOGUE[metric.key].heading}: without {place}: {reason or 'no row has it'}."
    yield from _holes(board)


def _carried(board: Board) -> Iterator[str]:
    """Yield how many latencies each high percentile rests on, and whether there are too few."""
    tail = max((CATALOGUE[one.key].tail for one in board.metrics), default=0)
    if board.fewest is not None and tail:
        few = "" if is_carried(board.fewest, tail) else f"; it needs about {ENOUGH[tail]}"
        yield f"P{tail}: each client has at least {board.fewest:,} latencies{few}."


def _folds(board: Board) -> Iterator[str]:
    for fold in dict.fromkeys(one.fold for one in board.metrics):
        names = [CATALOGUE[one.key].heading for one in board.metrics if one.fold is fold]
        yield f"{', '.join(names)}: {fold.value}."


def _holes(board: Board) -> Iterator[str]:
    """Yield undefined numbers with their reasons, and missing runs."""
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
    """Yield the first ``MOST_NAMED`` lines, then a line with the number of omitted lines."""
    yield from lines[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        yield f"{lines[0].partition(':')[0]}: {len(lines) - MOST_NAMED} more."
