"""``fairbench report``: a stored run, its repeats, or a sweep as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fairbench.errors import DataError, UsageError
from fairbench.report.pages.html import as_html
from fairbench.report.pages.markdown import page_markdown
from fairbench.report.pages.page import Page


def report(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="What `run` or `sweep` has made.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-file", "-o", help="FILE.html or FILE.md. [default: report.html in DIR]"
        ),
    ] = None,
) -> None:
    """Write a page on a run, its repeats, or a sweep.

    It has who got what, figures, bounds, warnings and how to run it again, in one file that needs
    no network and no script.
    """
    from fairbench.results.store import write_text

    path = output or directory / "report.html"
    if path.suffix not in (".html", ".md"):
        raise UsageError(f"--output-file {path}: must end in .html or .md")
    text = _rendered(_page(directory), path.suffix)
    try:
        write_text(path, text)
    except OSError as error:
        raise UsageError(f"--output-file {path}: cannot be written: {error.strerror}") from None
    typer.echo(f"report  {path}")


def _page(directory: Path) -> Page:
    """The page of whatever the directory is of. Raises DataError if that is nothing of ours."""
    from fairbench.report.pages.repeat_page import repeat_page
    from fairbench.report.pages.run_page import run_page
    from fairbench.report.pages.sweep_page import sweep_page
    from fairbench.results.intervals import INTERVALS_FILE
    from fairbench.results.store import MANIFEST, read_run
    from fairbench.results.sweep_store import SWEEP_FILE

    if (directory / MANIFEST).exists():
        return run_page(read_run(directory))
    if (directory / INTERVALS_FILE).exists():
        return repeat_page(directory)
    if (directory / SWEEP_FILE).exists():
        return sweep_page(directory)
    raise DataError(f"{directory}: is neither the directory of a run nor that of a sweep")


def _rendered(page: Page, suffix: str) -> str:
    return page_markdown(page) if suffix == ".md" else as_html(page)
