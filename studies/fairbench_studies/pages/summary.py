"""Draw what a terminal shows of a run or sweep: python plots/summary.py DIR OUT.svg COMMAND"""

import re
import sys
from pathlib import Path

from rich.console import Console, RenderableType

from fairbench.report import comparison_table, table
from fairbench.results.comparison import compare_sweep
from fairbench.results.store import read_run
from fairbench.results.sweep_store import SWEEP_FILE


def shown(folder: Path) -> RenderableType:
    """The comparison of a sweep, the summary of a run."""
    if (folder / SWEEP_FILE).exists():
        return comparison_table.render(compare_sweep(folder), table.MAX_WIDTH)
    return table.render(read_run(folder).summary, path=Path("results/runs") / folder.name)


folder, picture, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
with Path("/dev/null").open("w") as nowhere:
    console = Console(record=True, width=table.MAX_WIDTH, file=nowhere, force_terminal=True)
    console.print(shown(folder))
svg = console.export_svg(title=command)
# The theme asks a web server for its font; any monospace font of the reader's will do.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
picture.write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")
