"""The README's chart, drawn from results/tables/cells.csv: ``python studies hero``.

The chart shows the P95 latency of the well-behaved clients against throughput in two workloads,
with a marker per scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairbench_papers.style import log_y, panels, paper_style, save, scheduler_style
from fairbench_studies.kit.rows import ROOT, Row
from fairbench_studies.kit.table_store import read

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELLS = (
    ("tot", "s1", "trees of thought, one client sends more", "P95 of the well-behaved, s"),
    ("long-qa", "s2", "long documents, one client's are longer", "P95 to the first token, s"),
)
# ``OFFSETS`` moves labels away from their markers (in points), so that labels do not overlap.
OFFSETS = {
    ("tot", "vtc"): (-4, -11),
    ("tot", "dlpm"): (6, 5),
    ("tot", "d2lpm"): (8, -5),
    ("long-qa", "d2lpm"): (-46, 2),
    ("long-qa", "preble"): (-14, 8),
    ("long-qa", "fair-finish"): (-50, -9),
    ("tot", "fair-finish"): (-24, 9),
    ("long-qa", "fcfs"): (-24, -3),
    ("long-qa", "lpm"): (8, 0),
}


def main() -> None:
    """Write plots/hero.svg."""
    with paper_style():
        figure, axes = panels(1, len(CELLS), 7.2, 3.0)
        for panel, (workload, scenario, title, latency) in zip(axes[0], CELLS, strict=True):
            rows = [
                r for r in read("cells") if (r["workload"], r["scenario"]) == (workload, scenario)
            ]
            for row in rows:
                _mark(panel, row)
            panel.set_title(title, fontsize=9)
            panel.set_xlabel("throughput, 1000 weighted tokens/s")
            panel.set_ylabel(latency)
            panel.margins(x=0.22, y=0.15)
            log_y(panel)
        figure.supxlabel(
            f"simulated on {rows[0]['profile']}: 4 replicas, three clients, one of them heavy\n"
            "weighted tokens: input + 2 x output; better is to the lower right",
            fontsize=7,
        )
        save(figure, [ROOT / "plots" / "hero.svg"])


def _mark(panel: Axes, row: Row) -> None:
    style = scheduler_style(row["scheduler"])
    x, y = float(row["service_rate_tok_s"]) / 1000, float(row["victim_p95_s"])
    panel.plot(x, y, style.marker, color=style.colour, markersize=8)
    offset = OFFSETS.get((row["workload"], row["scheduler"]), (7, -3))
    panel.annotate(
        row["scheduler"], (x, y), offset, textcoords="offset points", fontsize=8, color=style.colour
    )
