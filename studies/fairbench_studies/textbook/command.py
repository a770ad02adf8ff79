"""``fairbench reproduce textbook``: the output of a textbook's listing on deadlines."""

from __future__ import annotations

from pathlib import Path

import typer

from fairbench_studies.textbook.claims import judge_textbook, textbook_markdown, write_textbook

TEXTBOOK = "textbook"


def reproduce_textbook(claims_dir: Path) -> None:
    """Judge claim 35 from short simulations, which are not stored."""
    judged = judge_textbook()
    for path in write_textbook(judged, claims_dir):
        typer.echo(path)
    typer.echo(textbook_markdown(judged), nl=False)
