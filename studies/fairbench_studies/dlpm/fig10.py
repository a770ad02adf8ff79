"""Figure 10 ([DLPM] §7.2): throughput and fairness by D2LPM's quantum Q^w.

Schedulers without a quantum Q^w appear as horizontal lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_papers.style import caption, panels, scheduler_style
from fairbench_studies.kit.provenance import provenance
from fairbench_studies.kit.values import in_units, plot_rows, row_of, setting_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THROUGHPUT, JAIN = "service_rate_tok_s", "jain_index_paper_window"
SCENARIOS = {"s2": "one heavy client", "none": "all well-behaved"}


def quantum_of(cell: SchedulerResults) -> int | None:
    """Return the quantum Q^w in tokens, or None if the scheduler is not D2LPM."""
    is_d2lpm = cell.combined["scheduler"] == "d2lpm"
    return setting_of(cell, "d2lpm.worker_quantum") if is_d2lpm else None


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row per configuration; ``quantum_tokens`` is D2LPM's worker quantum Q^w."""
    return [row_of(cell, (THROUGHPUT, JAIN), quantum_tokens=quantum_of(cell)) for cell in cells]


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw throughput (top) and Jain's index (bottom), with and without a heavy client."""
    table = rows(cells)
    shown = [name for name in SCENARIOS if any(row["scenario"] == name for row in table)]
    figure, axes = panels(2, len(shown), 8.0, 4.8, sharex=True, sharey="row")
    for column, scenario in enumerate(shown):
        mine = [row for row in table if row["scenario"] == scenario]
        for line, metric in enumerate((THROUGHPUT, JAIN)):
            _panel(axes[line][column], mine, metric)
        axes[0][column].set_title(SCENARIOS[scenario], fontsize=9)
        axes[1][column].set_xlabel("quantum Q^w, 1000 tokens")
    axes[0][0].set_ylabel("service, 1000 tok/s")
    axes[1][0].set_ylabel("Jain's index")
    caption(
        figure,
        "DLPM Fig. 10: trees of thought on four A10G over D²LPM's quantum",
        f"{provenance(cells)}. Jain's index covers the time in which all clients are active.",
        axes[0][0],
    )
    return figure


def _panel(axes: Axes, table: Sequence[dict[str, Any]], metric: str) -> None:
    scaled = in_units(table, metric, 1000 if metric == THROUGHPUT else 1)
    for row in scaled:
        if row["quantum_tokens"] is None and row[metric] is not None:
            style = scheduler_style(row["scheduler"])
            axes.axhline(row[metric], color=style.colour, linestyle=style.line, label=style.label)
    swept = [row for row in scaled if row["quantum_tokens"] is not None]
    for scheduler in dict.fromkeys(row["scheduler"] for row in swept):
        plot_rows(axes, swept, "quantum_tokens", metric, scheduler)
    axes.set_xscale("log")
    ticks = sorted({row["quantum_tokens"] for row in swept})
    axes.set_xticks(ticks, [f"{tick / 1000:g}" for tick in ticks])
    axes.minorticks_off()
