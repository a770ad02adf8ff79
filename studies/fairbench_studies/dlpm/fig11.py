"""Figure 11 ([DLPM] §7.3): service rate with 5 to 50 clients at a constant total request rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_papers.style import caption, panels
from fairbench_studies.kit.provenance import provenance
from fairbench_studies.kit.values import in_units, plot_rows, row_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = {
    "service_rate_tok_s": ("service rate, 1000 tok/s", 1000),
    "cache_hit_rate": ("cache hit rate, %", 0.01),
}


def clients_of(cell: SchedulerResults) -> int:
    """Return the number of clients in a configuration."""
    return len(cell.combined["clients"])


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row per configuration, with the number of clients in the column ``clients``."""
    return [row_of(cell, tuple(COLUMNS), clients=clients_of(cell)) for cell in cells]


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw each scheduler's service rate (left) and cache hit rate (right) by number of clients."""
    table = rows(cells)
    figure, axes = panels(1, len(COLUMNS), 8.0, 3.3)
    for panel, (metric, (label, unit)) in zip(axes[0], COLUMNS.items(), strict=True):
        scaled = in_units(table, metric, unit)
        for scheduler in dict.fromkeys(row["scheduler"] for row in table):
            plot_rows(panel, scaled, "clients", metric, scheduler)
        low, high = panel.get_ylim()
        # Start the y axis at 0, and leave space above the highest markers.
        panel.set_ylim(0, high + 0.05 * (high - min(low, 0)))
        panel.set(xlabel="clients", ylabel=label)
    caption(
        figure,
        "DLPM Fig. 11: trees of thought of 5 to 50 clients on one A10G at one total rate",
        provenance(cells),
        axes[0][0],
    )
    return figure
