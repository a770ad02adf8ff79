"""The page: the content of a report before it is HTML or Markdown. Renderers escape texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Pairs = Sequence[tuple[str, str]]
"""Labels and texts."""


class Paragraph(NamedTuple):
    """A few sentences."""

    text: str


class Definitions(NamedTuple):
    """Labels with a text each."""

    pairs: Pairs


class Bullets(NamedTuple):
    """A bulleted list of texts."""

    items: Sequence[str]


class Cell(NamedTuple):
    """Text in a table; ``mark`` is "best", "worst" or "", ``detail`` is set below it."""

    text: str
    mark: str = ""
    detail: str = ""


class Grid(NamedTuple):
    """A table: each row has a name, then numbers.

    A row with a single cell is a heading of the rows below.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Figure(NamedTuple):
    """An SVG drawing, which Markdown omits, and a description."""

    svg: str
    caption: str


class Code(NamedTuple):
    """Preformatted text, such as a command or a file."""

    text: str


Block = Paragraph | Definitions | Bullets | Grid | Figure | Code


class Section(NamedTuple):
    """Blocks of a page under a title, shown or folded at first."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


def filled(title: str, blocks: Sequence[Block], *before: Block) -> list[Section]:
    """Return a section of some blocks, preceded by others; nothing without blocks."""
    return [Section(title, [*before, *blocks])] if blocks else []


class Headline(NamedTuple):
    """A number to see first: its name, its value, and how to read it."""

    label: str
    value: str
    note: str = ""


class Page(NamedTuple):
    """A report: the source of its numbers, the main results, then the details."""

    title: str
    provenance: str
    headlines: Sequence[Headline]
    warnings: Sequence[str]
    sections: Sequence[Section]
