"""A page as a file."""

from __future__ import annotations

from pathlib import Path

from fairbench.errors import UsageError, writing
from fairbench.report.pages.html import as_html
from fairbench.report.pages.markdown import page_markdown
from fairbench.report.pages.page import Page
from fairbench.results.store import write_text

ENDINGS = (".html", ".md")


def check_ending(path: Path, flag: str) -> None:
    """Raise UsageError for a name that does not end in .html or .md."""
    if path.suffix not in ENDINGS:
        raise UsageError(f"{flag} {path}: must end in .html or .md")


def write_page(page: Page, path: Path, flag: str) -> None:
    """Write a page in the format of the file's suffix. Raises UsageError on failure."""
    check_ending(path, flag)
    text = page_markdown(page) if path.suffix == ".md" else as_html(page)
    with writing(path, flag):
        write_text(path, text)
