"""How a summary reaches the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer


def print_summary(summary: Mapping[str, Any], path: Path, *, complete: bool) -> None:
    """The summary for people, on stdout; plain text unless stdout is a terminal."""
    from fairbench.report.table import as_text

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    typer.echo(as_text(summary, path=path, complete=complete, colour=colour), nl=False)


def print_json(summary: Mapping[str, Any]) -> None:
    """The summary for programs: one JSON object on stdout, in which undefined is null."""
    typer.echo(json.dumps(summary, allow_nan=False))
