"""Figure 7: three workloads, two kinds of misbehaving, four schedulers, 1 to 8 replicas.

[DLPM] §6.2. A row of panels per workload and scenario; service rate, Jain's index of it, and the
latency of the well-behaved clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.figures.provenance import provenance
from fairbench.figures.style import caption, log_y, panels
from fairbench.figures.values import in_units, plot_rows, row_of
from fairbench.results.comparison import SchedulerResults

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = {
    "service_rate_tok_s": "service rate, 1000 tok/s",
    "jain_index": "Jain's index of the service rate",
    "victim_p50_s": "well-behaved P50, s",
    "victim_p99_s": "well-behaved P99, s",
}
REACHABLE = "jain_index_maxmin"


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """One per cell."""
    return [row_of(cell, [*COLUMNS, REACHABLE]) for cell in cells]


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """The figure of all cells; latencies on a logarithmic axis."""
    table = rows(cells)
    places = list(dict.fromkeys((row["workload"], row["scenario"]) for row in table))
    figure, axes = panels(len(places), len(COLUMNS), 9.5, 0.8 + 1.55 * len(places), sharex=True)
    for number, (workload, scenario) in enumerate(places):
        mine = [r for r in table if (r["workload"], r["scenario"]) == (workload, scenario)]
        for panel, metric in zip(axes[number], COLUMNS, strict=True):
            _panel(panel, mine, metric)
        latency = "TTFT" if workload == "long-qa" else "program"
        axes[number][0].set_ylabel(f"{workload} {scenario}\n({latency} latency)")
    for panel, title in zip(axes[0], COLUMNS.values(), strict=True):
        panel.set_title(title, fontsize=8)
    for panel in axes[-1]:
        panel.set_xlabel("replicas")
    caption(
        figure,
        "DLPM Fig. 7: service, fairness and latency with one misbehaving client",
        f"{provenance(cells)}. Open marks: at least so much, programs were unfinished at the end. "
        "Grey: the most that max-min fair shares of the same service would reach, since "
        "well-behaved clients ask for less than theirs.",
        axes[0][1],
    )
    return figure


def _panel(axes: Axes, table: Sequence[dict[str, Any]], metric: str) -> None:
    shown = in_units(table, metric, 1000 if metric == "service_rate_tok_s" else 1)
    for scheduler in dict.fromkeys(row["scheduler"] for row in table):
        plot_rows(axes, shown, "dp", metric, scheduler)
    replicas = sorted({row["dp"] for row in table})
    if metric == "jain_index":
        best = [max(row[REACHABLE] or 0.0 for row in table if row["dp"] == dp) for dp in replicas]
        axes.plot(replicas, best, color="0.6", linewidth=3, zorder=0, label="max-min fair")
        axes.set_ylim(0.3, 1.03)
    elif metric.startswith("victim"):
        log_y(axes)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(replicas, [str(dp) for dp in replicas])
    axes.minorticks_off()
