"""Tables for people, without borders and cut to a width, and names that stay distinct when cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import fitting
from fairbench.metrics.metric import Column

MAX_WIDTH = 100


def printed(renderable: RenderableType, *, colour: bool, width: int) -> str:
    """Return lines of text of at most ``width`` columns, with or without ANSI colours."""
    console = Console(
        width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    with console.capture() as capture:
        console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def plain_table(*headings: str, gap: int = 2) -> Table:
    """Return an empty table without borders: a column of labels, then numbers to the right.

    ``gap`` is the space between columns. Without ``headings`` there are no columns yet.
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
    """Return one table of all columns, or several, each of at most ``width`` columns of text.

    Columns with the lowest ``dropped`` go to the next table first. ``make`` builds a table of some
    columns, including the labels of rows.
    """

    def fits(shown: Sequence[Column]) -> bool:
        return _is_within(make(shown), width)

    tables: list[RenderableType] = []
    left = list(columns)
    while left or not tables:
        shown = _first(left, fits)
        tables += [Text(), make(shown)] if tables else [make(shown)]
        left = [one for one in left if one not in shown]
    return Group(*tables)


T = TypeVar("T")


def first_fitting(layouts: Sequence[T], make: Callable[[T], Table], width: int) -> tuple[T, Table]:
    """Return the first layout whose table has at most ``width`` columns of text, else the last."""
    for layout in layouts:
        table = make(layout)
        if _is_within(table, width):
            break
    return layout, table


def _is_within(table: Table, width: int) -> bool:
    return Console(width=10 * width).measure(table).maximum <= width


def _first(columns: list[Column], fits: Callable[[Sequence[Column]], bool]) -> list[Column]:
    """Return the columns of the first table: at least one, so that every column is shown."""
    for shown in fitting(columns):
        if shown and fits(shown):
            return shown
    count = len(columns)
    while count > 1 and not fits(columns[:count]):
        count -= 1
    return columns[:count]


CUT = "…"


def cut_apart(names: Iterable[str], width: int) -> dict[str, str]:
    """Shorten each name to at most ``width`` characters, in the middle.

    If several names then become equal, their ends are kept instead; if that does not help, their
    beginnings. Names that differ only in the middle may still become equal.
    """
    given = tuple(dict.fromkeys(names))
    tried = [
        {name: _cut(name, head, width) for name in given} for head in (width // 2, 0, width - 1)
    ]
    return next((made for made in tried if len(set(made.values())) == len(given)), tried[0])


def _cut(name: str, head: int, width: int) -> str:
    """Return the first ``head`` characters, and as many of the last as fit."""
    if len(name) <= width:
        return name
    return f"{name[:head]}{CUT}{name[len(name) - (width - 1 - head) :]}"


def cut_middle(name: str, width: int) -> str:
    """Return a name in at most ``width`` characters, without its middle if it is longer."""
    return _cut(name, (width - 1) // 2, width)


def folded_name(name: str, width: int) -> str:
    """Return a name in lines of at most ``width`` characters, which end after a space or a ``+``.

    A part that is longer than a line is cut anywhere.
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
