"""Tables below each other, if a single table would be wider than the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbench.metrics.catalogue import fitting
from fairbench.metrics.metric import Column


def stacked(
    columns: Sequence[Column], make: Callable[[Sequence[Column]], Table], width: int
) -> RenderableType:
    """Return one table of all columns, or several, each of at most ``width`` columns of text.

    Args:
        columns: metrics in their order; those with the lowest ``dropped`` go to the next table
            first.
        make: builds the table of some columns, labels of rows included.
        width: characters in a line.
    """
    ruler = Console(width=10 * width)

    def fits(shown: Sequence[Column]) -> bool:
        return ruler.measure(make(shown)).maximum <= width

    tables: list[RenderableType] = []
    left = list(columns)
    while left or not tables:
        shown = _first(left, fits)
        tables += [Text(), make(shown)] if tables else [make(shown)]
        left = [one for one in left if one not in shown]
    return Group(*tables)


def _first(columns: list[Column], fits: Callable[[Sequence[Column]], bool]) -> list[Column]:
    """Return the columns of the first table: at least one, so that every column is shown."""
    for shown in fitting(columns):
        if shown and fits(shown):
            return shown
    count = len(columns)
    while count > 1 and not fits(columns[:count]):
        count -= 1
    return columns[:count]
