"""The page: what a report says before it is HTML or Markdown. Renderers escape its texts."""

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
    """A list."""

    items: Sequence[str]


class Cell(NamedTuple):
    """Text in a table; ``mark`` is "best", "worst" or nothing, ``detail`` is set below it."""

    text: str
    mark: str = ""
    detail: str = ""


class Grid(NamedTuple):
    """A table: names, then numbers. A row of one cell is the heading of those below it."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Figure(NamedTuple):
    """A drawing as SVG, which Markdown leaves out, and what it shows."""

    svg: str
    caption: str


class Code(NamedTuple):
    """Text as it is, such as a command or a file."""

    text: str


Block = Paragraph | Definitions | Bullets | Grid | Figure | Code


class Section(NamedTuple):
    """Blocks under a title, perhaps folded away."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


class Headline(NamedTuple):
    """A number to see first: what it is of, its value, and how to read it."""

    label: str
    value: str
    note: str = ""


class Page(NamedTuple):
    """A report: where its numbers come from, what counts most, then everything else."""

    title: str
    provenance: str
    headlines: Sequence[Headline]
    warnings: Sequence[str]
    sections: Sequence[Section]
