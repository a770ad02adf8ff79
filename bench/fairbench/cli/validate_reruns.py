"""``fairbench validate`` of reruns of the DLPM authors' own benchmark."""

from __future__ import annotations

from pathlib import Path

import typer

from fairbench.cli.output import print_json
from fairbench.results.directories import check_writable
from fairbench.results.store import write_json
from fairbench.validate.rerun import compare_rerun, load_reruns
from fairbench.validate.rerun_table import rerun_text, reruns_json


def validate_reruns(file: Path, output_dir: Path | None, *, as_json: bool) -> None:
    """Simulate every run of a file, print the comparison, and write it if asked to."""
    runs = load_reruns(file)
    if output_dir is not None:
        check_writable(output_dir)
    found = [compare_rerun(run) for run in runs]
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / "validation.json", reruns_json(found))
        typer.echo(f"fairbench: written to {output_dir}", err=True)
    if as_json:
        print_json(reruns_json(found))
    else:
        typer.echo(rerun_text(found), nl=False)
