"""Draw a stored run's summary as it looks in a terminal: python plots/summary.py RUN_DIR OUT.svg"""

import re
import sys
from pathlib import Path

from rich.console import Console

from fairbench.report.table import MAX_WIDTH, render
from fairbench.results.store import read_run

run = read_run(Path(sys.argv[1]))
with Path("/dev/null").open("w") as nowhere:
    console = Console(record=True, width=MAX_WIDTH, file=nowhere, force_terminal=True)
    console.print(render(run.summary, path=Path("results/runs") / run.path.name))
svg = console.export_svg(title="fairbench run --scheduler d2lpm --dp 4")
# The theme asks a web server for its font; any monospace font of the reader's will do.
svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
Path(sys.argv[2]).write_text(svg.replace("Fira Code", "DejaVu Sans Mono"), encoding="utf-8")
