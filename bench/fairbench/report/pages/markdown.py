"""Conversion of pages and tables to GitHub's Markdown, without figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import TypeVar

from fairbench.report.pages.page import (
    Block,
    Bullets,
    Cell,
    Code,
    Definitions,
    Figure,
    Grid,
    Page,
    Paragraph,
    Section,
)

T = TypeVar("T")
STRONG = {"best": "**{}**", "worst": "*{}*"}


def page_markdown(page: Page) -> str:
    """Return a page as Markdown, without its figures."""
    lines = [f"# {escaped(page.title)}", "", escaped(page.provenance), ""]
    lines += [f"**{escaped(page.answer)}**", ""] if page.answer else []
    lines += table(["", "", ""], page.headlines, escaped)
    if page.warnings:
        lines += ["", *(f"> - {escaped(text)}" for text in page.warnings)]
    for section in page.sections:
        lines += _section(section)
    return "\n".join(lines) + "\n"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[T]], write: Callable[[T], str]
) -> Iterator[str]:
    """Yield the lines of a Markdown table; ``write`` converts a cell to Markdown.

    Missing cells at the end of a row stay empty.
    """
    yield _markdown_row(map(escaped, headings))
    yield _markdown_row(["---"] * len(headings))
    for row in rows:
        yield _markdown_row([*map(write, row), *[""] * (len(headings) - len(row))])


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Escape any text for one line of Markdown."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|~#>])", r"\\\1", plain)


def _section(section: Section) -> Iterator[str]:
    if section.folded:
        yield from ("", "<details>", f"<summary>{escape(section.title)}</summary>")
    elif not all(isinstance(block, Figure) for block in section.blocks) or not section.blocks:
        yield from ("", f"## {escaped(section.title)}")
    for block in section.blocks:
        if not isinstance(block, Figure):
            yield ""
            yield from _block(block)
    if section.folded:
        yield from ("", "</details>")


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield escaped(text)
        case Bullets(items):
            yield from (f"- {escaped(item)}" for item in items)
        case Definitions(pairs):
            yield from table(["", ""], pairs, escaped)
        case Code(text):
            fence = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
            yield from (fence, *text.rstrip("\n").split("\n"), fence)
        case Grid(headings, rows):
            yield from table(headings, rows, _markdown_cell)


def _markdown_cell(cell: Cell) -> str:
    text = STRONG.get(cell.mark, "{}").format(escaped(cell.text))
    return f"{text} ({escaped(cell.detail)})" if cell.detail else text
