"""Draws the terminal output of a run or sweep: ``summary DIR OUT.svg COMMAND``."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console, RenderableType

from fairbench.report import comparison_table, run_table, table
from fairbench.results.comparison import compare_sweep
from fairbench.results.store import read_run
from fairbench.results.sweep_store import SWEEP_FILE


def shown(folder: Path) -> RenderableType:
    """Return the comparison of a sweep, or the summary of a run."""
    if (folder / SWEEP_FILE).exists():
        return comparison_table.render(compare_sweep(folder), table.MAX_WIDTH)
    return run_table.render(read_run(folder).summary, path=Path("results/runs") / folder.name)


def main(folder: str, picture: str, command: str) -> None:
    """Write the picture under the title of the command."""
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=table.MAX_WIDTH, file=nowhere, force_terminal=True)
        console.print(shown(Path(folder)))
    svg = console.export_svg(title=command)
    # The theme requests its font from a web server; any monospace font of the reader is suitable.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    Path(picture).write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")
