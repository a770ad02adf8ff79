"""Conversion of a page to one HTML file that loads no scripts, fonts or pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from pathlib import Path

from fairbench.errors import UsageError, writing
from fairbench.report.pages.markdown import page_markdown
from fairbench.report.pages.page import (
    Block,
    Bullets,
    Cell,
    Code,
    Definitions,
    Figure,
    Grid,
    Headline,
    Page,
    Paragraph,
    Section,
)
from fairbench.report.palette import style_sheet
from fairbench.results.store import write_text

# On a phone, the page shows a table with more than ``MOST_COLUMNS`` columns as a list.
MOST_COLUMNS = 4


def as_html(page: Page) -> str:
    """Return a page as one HTML file for narrow screens, light and dark mode, and print."""
    style = files("fairbench.report.pages").joinpath("html.css").read_text(encoding="utf-8")
    warnings: list[str] = []
    if items := [f"<li>{escape(text)}</li>" for text in page.warnings]:
        start = '<section class="warnings" aria-label="Warnings"><ul>'
        warnings = [start, *items, "</ul></section>"]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(page.title)}</title>",
            f"<style>\n{style_sheet()}{style}</style>",
            "<main>",
            f"<h1>{escape(page.title)}</h1>",
            f'<p class="provenance">{escape(page.provenance)}</p>',
            *([f'<p class="answer">{escape(page.answer)}</p>'] if page.answer else []),
            *_html_cards(page.headlines),
            *warnings,
            *(line for section in page.sections for line in _section(section)),
            "</main>",
            "</html>",
            "",
        ]
    )


def _html_cards(headlines: Iterable[Headline]) -> Iterator[str]:
    yield '<div class="headlines">'
    for one in headlines:
        yield (
            f"<div><span>{escape(one.label)}</span><strong>{escape(one.value)}</strong>"
            f"<small>{escape(one.note)}</small></div>"
        )
    yield "</div>"


def _section(section: Section) -> Iterator[str]:
    title = escape(section.title)
    if section.folded:
        yield f"<details><summary>{title}</summary>"
    else:
        yield f"<section><h2>{title}</h2>"
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    for block in section.blocks:
        if not isinstance(block, Figure):
            yield from _block(block)
    if figures:
        yield '<div class="figures">'
        for figure in figures:
            caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
            yield f"<figure>{figure.svg}{caption}</figure>"
        yield "</div>"
    yield "</details>" if section.folded else "</section>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph(text):
            yield f"<p>{escape(text)}</p>"
        case Code(text):
            yield f"<pre><code>{escape(text)}</code></pre>"
        case Bullets(items):
            yield "<ul>"
            yield from (f"<li>{escape(item)}</li>" for item in items)
            yield "</ul>"
        case Definitions(pairs):
            yield "<dl>"
            yield from (f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in pairs)
            yield "</dl>"
        case Grid(headings, rows):
            kind = ' class="turn"' if len(headings) > MOST_COLUMNS else ""
            yield f'<div class="scroll"><table{kind}>'
            named = "".join(f'<th scope="col">{escape(text)}</th>' for text in headings)
            yield f"<thead><tr>{named}</tr></thead><tbody>"
            for row in rows:
                cells = zip(headings[1:], row[1:], strict=False)
                values = "".join(_html_cell(heading, cell) for heading, cell in cells)
                group = f'scope="rowgroup" colspan="{len(headings)}"'
                scope = 'scope="row"' if len(row) > 1 else group
                name = f"<th {scope}>{escape(row[0].text)}{_detail(row[0])}</th>"
                yield f"<tr>{name}{values}</tr>"
            yield "</tbody></table></div>"


def _html_cell(heading: str, cell: Cell) -> str:
    mark = f' class="{cell.mark}"' if cell.mark else ""
    label = f'data-label="{escape(heading)}"'
    return f"<td {label}><span{mark}>{escape(cell.text)}</span>{_detail(cell)}</td>"


def _detail(cell: Cell) -> str:
    return f"<small>{escape(cell.detail)}</small>" if cell.detail else ""


ENDINGS = (".html", ".md")


def check_ending(path: Path, flag: str) -> None:
    """Raise UsageError for a file name that does not end in .html or .md."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"{flag} {path}: must end in .html or .md")


def write_page(page: Page, path: Path, flag: str = "--report") -> None:
    """Write a page in the format of the file's suffix.

    Raises UsageError if the file cannot be written.
    """
    check_ending(path, flag)
    text = page_markdown(page) if path.suffix == ".md" else as_html(page)
    with writing(path, flag):
        write_text(path, text)
