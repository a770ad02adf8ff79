"""The file of a page: its name is checked before anything runs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from fairbench.errors import UsageError

if TYPE_CHECKING:
    from fairbench.report.pages.page import Page

ENDINGS = (".html", ".md")


def check_report(path: Path | None, flag: str = "--report") -> None:
    """Raise UsageError for a name that does not end in .html or .md."""
    if path is not None and path.suffix not in ENDINGS:
        raise UsageError(f"{flag} {path}: must end in .html or .md")


def check_writable(path: Path | None, flag: str = "--report") -> None:
    """Raise UsageError for a page that cannot be written. Called before a long computation."""
    if path is None:
        return
    check_report(path, flag)
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be written: {error.strerror}") from None
    if path.is_dir():
        raise UsageError(f"{flag} {path}: cannot be written: Is a directory")


def write_report(page: Page, path: Path, flag: str = "--report") -> None:
    """Write a page in the format of the file's suffix. Raises UsageError on failure.

    Args:
        page: Page to write.
        path: File to write: Markdown for the suffix ``.md``, otherwise HTML.
        flag: Name of the flag in messages.
    """
    from fairbench.report.pages.html import as_html
    from fairbench.report.pages.markdown import page_markdown
    from fairbench.results.store import write_text

    text = page_markdown(page) if path.suffix == ".md" else as_html(page)
    try:
        write_text(path, text)
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be written: {error.strerror}") from None
