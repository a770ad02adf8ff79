"""Functions that format text tables to a maximum width and shorten long names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import fitting
from fairbench.metrics.metric import Column

MAX_WIDTH = 100


def printed(renderable: RenderableType, *, colour: bool, width: int) -> str:
    """Return a ``rich`` object as text, with at most ``width`` characters per line."""
    console = Console(
        width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    with console.capture() as capture:
        console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def plain_table(*headings: str, gap: int = 2) -> Table:
    """Return an empty table without borders.

    The first column is left-aligned, and further columns are right-aligned. ``gap`` is the number
    of spaces between columns. Without ``headings``, the table has no columns.
    """
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for number, heading in enumerate(headings):
        amounts = number > 0 and heading != ""
        table.add_column(heading, justify="right" if amounts else "left", overflow="fold")
    return table


def pairs_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of labels and texts, without headings."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(Text(label, style="dim"), Text(text))
    return table


def stacked(
    columns: Sequence[Column], make: Callable[[Sequence[Column]], Table], width: int
) -> RenderableType:
    """Return all columns as one table or several tables of at most ``width`` characters each.

    The function ``make`` builds a table from the row labels and the given columns. If the table is
    too wide, columns move to the next table, beginning with the lowest ``Column.dropped``.
    """

    def fits(shown: Sequence[Column]) -> bool:
        return _is_within(make(shown), width)

    tables: list[RenderableType] = []
    left = list(columns)
    while left or not tables:
        shown = _fitting_columns(left, fits)
        tables += [Text(), make(shown)] if tables else [make(shown)]
        left = [one for one in left if one not in shown]
    return Group(*tables)


T = TypeVar("T")


def first_fitting(layouts: Sequence[T], make: Callable[[T], Table], width: int) -> tuple[T, Table]:
    """Return the first layout whose table fits into ``width`` characters, or the last layout."""
    for layout in layouts:
        table = make(layout)
        if _is_within(table, width):
            break
    return layout, table


def _is_within(table: Table, width: int) -> bool:
    return Console(width=10 * width).measure(table).maximum <= width


def _fitting_columns(
    columns: list[Column], fits: Callable[[Sequence[Column]], bool]
) -> list[Column]:
    for shown in fitting(columns):
        if shown and fits(shown):
            return shown
    count = len(columns)
    while count > 1 and not fits(columns[:count]):
        count -= 1
    return columns[:count]


CUT = "…"


def cut_apart(names: Iterable[str], width: int) -> dict[str, str]:
    """Shorten each name to at most ``width`` characters by cutting its middle.

    If cutting the middles makes two names equal, the starts of all names are cut. If cutting the
    starts also makes two names equal, the ends are cut. If cutting the ends also makes two names
    equal, the middles are cut.
    """
    given = tuple(dict.fromkeys(names))
    tried = [
        {name: _cut(name, head, width) for name in given} for head in (width // 2, 0, width - 1)
    ]
    return next((made for made in tried if len(set(made.values())) == len(given)), tried[0])


def _cut(name: str, head: int, width: int) -> str:
    if len(name) <= width:
        return name
    return f"{name[:head]}{CUT}{name[len(name) - (width - 1 - head) :]}"


def cut_middle(name: str, width: int) -> str:
    """Shorten a name to at most ``width`` characters by cutting its middle."""
    return _cut(name, (width - 1) // 2, width)
