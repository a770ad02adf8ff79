"""The option ``--report`` of ``score`` and ``diagnose``."""

from __future__ import annotations

from errno import EISDIR
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

from typer import Option

from fairbench.cli.output import check_report
from fairbench.errors import writing

ReportFile = Annotated[
    Path | None,
    Option(
        "--report",
        metavar="FILE.html",
        help="Also write a page with charts to this file (.html or .md).",
    ),
]


def check_writable(path: Path | None, flag: str = "--report") -> None:
    """Raise UsageError if the report page cannot be written, before a long computation starts."""
    if path is None:
        return
    check_report(path, flag)
    with writing(path, flag):
        if path.is_dir():
            raise IsADirectoryError(EISDIR, "Is a directory")
        with TemporaryFile(dir=path.parent):
            pass
