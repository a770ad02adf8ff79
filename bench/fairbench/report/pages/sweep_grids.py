"""The tables of a sweep's report: schedulers by configuration, and their clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from fairbench.metrics.catalogue import columns_of, told
from fairbench.metrics.metric import Column, Display
from fairbench.metrics.tail import shown_client_tail
from fairbench.report.client_table import described
from fairbench.report.comparison_table import (
    LIMITED,
    bounded,
    comparison_columns,
    ends_of,
    percentiles_of,
)
from fairbench.report.crowd import shown_clients
from fairbench.report.marks import BEST, WORST, Interval, cell_marks
from fairbench.report.numbers import UNDEFINED
from fairbench.report.pages.page import Cell, Grid, Section
from fairbench.results.comparison import SchedulerResults

INDENT = "\u2003"
MARKS = {BEST: "best", WORST: "worst"}


def comparison_grid(cells: Sequence[SchedulerResults]) -> Grid:
    """Return a row per scheduler, by configuration, with the best and worst values marked."""
    rows: list[list[Cell]] = []
    columns = comparison_columns(cells)
    for place, group in groupby(cells, lambda cell: cell.place):
        here = list(group)
        limited = f" {LIMITED}" if any(cell.demand_limited for cell in here) else ""
        rows.append([Cell(place + limited)])
        rows += _rows(here, columns)
    return Grid(["", *(column.title for column in columns)], rows)


def _rows(cells: Sequence[SchedulerResults], columns: Sequence[Column]) -> list[list[Cell]]:
    """Return one row per cell, with the best and the worst of each column marked."""
    return [
        [
            Cell(f"{INDENT}{cell.scheduler}"),
            *(
                _cell(cell.combined.get(one.key), one, mark, len(cell.combined["seeds"]))
                for one, mark in zip(columns, marked, strict=True)
            ),
        ]
        for cell, marked in zip(cells, cell_marks(cells, columns), strict=True)
    ]


def _cell(interval: Interval | None, column: Column, mark: str, runs: int) -> Cell:
    if interval is None:
        return Cell(UNDEFINED)
    return Cell(bounded(interval, column), MARKS.get(mark, ""), ends_of(interval, column, runs))


def plain_row(name: str, values: Interval, columns: Sequence[Column], runs: int) -> list[Cell]:
    """Return a row without marks, of values combined from ``runs`` runs."""
    return [Cell(name), *(_cell(values.get(one.key), one, "", runs) for one in columns)]


def place_sections(cells: Sequence[SchedulerResults]) -> Iterator[Section]:
    """Yield, for each configuration, a folded table of clients under each scheduler."""
    for place, group in groupby(cells, lambda cell: cell.place):
        rows: list[list[Cell]] = []
        here = list(group)
        tail = shown_client_tail(one.summary for cell in here for one in cell.runs)
        keys = {key for cell in here for one in cell.combined["clients"] for key in one}
        columns = told(columns_of(Display.COMPARED_CLIENTS, tail, percentiles_of(here)), keys)
        for cell in here:
            clients, which = shown_clients(cell.combined)
            rows.append([Cell(f"{cell.scheduler}: {which}" if which else cell.scheduler)])
            runs = len(cell.combined["seeds"])
            for client in clients:
                name = described(f"{INDENT}{client['client']}", client)
                rows.append(plain_row(name, client, columns, runs))
        headings = ["", *(column.title for column in columns)]
        yield Section(place, [Grid(headings, rows)], folded=True)
