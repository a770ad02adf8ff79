"""``fairbench reproduce textbook``: what a textbook's listing prints of deadlines."""

from __future__ import annotations

from pathlib import Path

import typer

from fairbench_studies.textbook.claims import judge_textbook, textbook_markdown, write_textbook

TEXTBOOK = "textbook"


def reproduce_textbook(claims_dir: Path) -> None:
    """Judge claim 35. Nothing is stored of its runs, which take a second."""
    judged = judge_textbook()
    for path in write_textbook(judged, claims_dir):
        typer.echo(path)
    typer.echo(textbook_markdown(judged), nl=False)
