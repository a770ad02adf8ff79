"""The parts of a report page, such as paragraphs, tables and figures.

The renderers for HTML and Markdown escape the texts of all parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Pairs = Sequence[tuple[str, str]]
"""Labels and texts."""


class Paragraph(NamedTuple):
    """A paragraph of text on the page."""

    text: str


class Definitions(NamedTuple):
    """A definition list: labels, each with a text."""

    pairs: Pairs


class Bullets(NamedTuple):
    """A list of texts with bullets."""

    items: Sequence[str]


class Cell(NamedTuple):
    """A table cell; ``mark`` is "best", "worst" or "", and ``detail`` is a second line of text."""

    text: str
    mark: str = ""
    detail: str = ""


class Grid(NamedTuple):
    """A table whose rows consist of a name and numbers.

    A row with a single cell is a heading for the rows below.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Figure(NamedTuple):
    """An SVG drawing and its description; Markdown omits the drawing."""

    svg: str
    caption: str


class Code(NamedTuple):
    """Preformatted text, such as a command or a file."""

    text: str


Block = Paragraph | Definitions | Bullets | Grid | Figure | Code


class Section(NamedTuple):
    """Blocks of a page under a title; the blocks of a folded section are hidden until a click."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


def filled(title: str, blocks: Sequence[Block], *before: Block) -> list[Section]:
    """Return a section with ``blocks`` as a list, which is empty if there are no blocks."""
    return [Section(title, [*before, *blocks])] if blocks else []


class Headline(NamedTuple):
    """A card at the top of a page: a number's name, its value, and a remark on it."""

    label: str
    value: str
    note: str = ""


class Page(NamedTuple):
    """A report page: the origin of the numbers, the main results, then the details.

    ``answer`` is a sentence that answers the page's question, or "" if the title answers it.
    """

    title: str
    provenance: str
    headlines: Sequence[Headline]
    warnings: Sequence[str]
    sections: Sequence[Section]
    answer: str = ""
