"""The tables of a sweep's report: schedulers place by place, and their clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from fairbench.report.comparison_table import COLUMNS, LIMITED, Column, bounded
from fairbench.report.marks import BEST, WORST, Interval, marks_of
from fairbench.report.numbers import UNDEFINED, number, percent
from fairbench.report.pages.page import Cell, Grid, Section
from fairbench.results.comparison import Cell as Compared

INDENT = "\u2003"
MARKS = {BEST: "best", WORST: "worst"}
OF_CLIENTS = (
    Column("service_rate_tok_s", "service tok/s", number, True),
    Column("entitlement_best_ratio", "of fair share of the best total", percent, True),
    Column("p50_s", "P50 s", number, False),
    Column("p99_s", "P99 s", number, False),
    Column("sharing_incentive_p50", "sharing P50", number, False),
    Column("sharing_incentive_p99", "sharing P99", number, False),
    Column("cache_hit_rate", "cache hit", percent, True),
)


def comparison_grid(cells: Sequence[Compared]) -> Grid:
    """A row per scheduler, place by place, the best and the worst of a place marked."""
    rows: list[list[Cell]] = []
    for place, group in groupby(cells, lambda cell: cell.place):
        here = list(group)
        limited = f" {LIMITED}" if any(cell.demand_limited for cell in here) else ""
        rows.append([Cell(place + limited)])
        rows += _rows([(f"{INDENT}{cell.scheduler}", cell.combined) for cell in here], COLUMNS)
    return Grid(["", *(column.heading.replace("\n", " ") for column in COLUMNS)], rows)


def _rows(named: Sequence[tuple[str, Interval]], columns: Sequence[Column]) -> list[list[Cell]]:
    """One row each, the best and the worst of a column marked."""
    marks = [
        marks_of([values.get(one.key) for _, values in named], one.more_is_better)
        for one in columns
    ]
    return [
        [
            Cell(name),
            *(
                _cell(values.get(one.key), one, mark)
                for one, mark in zip(columns, marked, strict=True)
            ),
        ]
        for (name, values), marked in zip(named, zip(*marks, strict=True), strict=True)
    ]


def _cell(interval: Interval | None, column: Column, mark: str) -> Cell:
    if interval is None:
        return Cell(UNDEFINED)
    detail = ""
    if interval["runs"] > 1:
        detail = "-".join(column.write(interval[key]) for key in ("low", "high"))
    return Cell(bounded(interval, column), MARKS.get(mark, ""), detail)


def plain_row(name: str, values: Interval, columns: Sequence[Column]) -> list[Cell]:
    """A row in which nothing is marked."""
    return [Cell(name), *(_cell(values.get(one.key), one, "") for one in columns)]


def place_sections(cells: Sequence[Compared]) -> Iterator[Section]:
    """Per place a table of all clients under each scheduler, folded away."""
    for place, group in groupby(cells, lambda cell: cell.place):
        rows: list[list[Cell]] = []
        for cell in group:
            rows.append([Cell(cell.scheduler)])
            for client in cell.combined["clients"]:
                behaviour = " (misbehaves)" if client["misbehaving"] else ""
                rows.append(plain_row(f"{INDENT}{client['client']}{behaviour}", client, OF_CLIENTS))
        headings = ["", *(column.heading for column in OF_CLIENTS)]
        yield Section(place, [Grid(headings, rows)], folded=True)
