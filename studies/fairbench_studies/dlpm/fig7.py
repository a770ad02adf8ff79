"""Figure 7 ([DLPM] §6.2): four schedulers on 1 to 8 replicas, in workloads with heavy clients.

The figure has a row of panels for each of three workloads in each of two scenarios. A row of panels
shows service rate, Jain's index of clients' service rates, and latency of well-behaved clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_papers.style import caption, log_y, panels
from fairbench_studies.kit.provenance import provenance
from fairbench_studies.kit.values import in_units, plot_rows, row_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = {
    "service_rate_tok_s": "service rate, 1000 tok/s",
    "jain_index": "Jain's index of the service rate",
    "victim_p50_s": "well-behaved P50, s",
    "victim_p99_s": "well-behaved P99, s",
}
PREBLES = ("preble", "preble-code")
REACHABLE = "jain_index_maxmin"
POOL = "pool_tokens"  # column with the size of the KV pool, if the runs set the size
X_AXES = {"dp": "replicas", POOL: "KV pool, 1000 tokens"}

GREY = (
    "Grey: the highest value that is possible with max-min fair shares of the same service, since "
    "well-behaved clients ask for less than their share."
)
AT_PRESET = (
    "The settings of a rerun of the authors' benchmark: a KV pool of 20,000 tokens, 50 programs of "
    "each well-behaved client, one every 2 s for each replica, measured until all are done. That "
    "pool holds no document of long-qa, so there the pool is the axis, on 4 replicas; documents "
    "larger than it are refused."
)


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row per configuration and scheduler, with the metrics that the figure shows."""
    metrics = list(columns(cells))
    if not _whole(cells):
        metrics.append(REACHABLE)
    return [row_of(cell, metrics, **_pool(cell)) for cell in cells]


def columns(cells: Sequence[SchedulerResults]) -> dict[str, str]:
    """Return the metrics that the figure draws, with their titles.

    If metrics cover whole runs, Jain's index covers only the time in which all clients were active.
    The total service of a client in a whole run is equal under every scheduler.
    """
    if not _whole(cells):
        return COLUMNS
    active = ("jain_index_paper_window", "Jain's index, all clients active")
    return dict(active if key == "jain_index" else (key, one) for key, one in COLUMNS.items())


def _whole(cells: Sequence[SchedulerResults]) -> bool:
    """Return whether the metrics cover whole runs instead of a measurement window."""
    return all(run.experiment.get("window") == "whole" for cell in cells for run in cell.runs)


def _pool(cell: SchedulerResults) -> dict[str, int]:
    engine = cell.runs[0].experiment["settings"].get("engine", {})
    tokens = engine.get("max_total_tokens", 0)
    return {POOL: tokens} if tokens else {}


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw the metrics of each workload and scenario, with latencies on a logarithmic axis."""
    table, titles = rows(cells), columns(cells)
    places = list(dict.fromkeys((row["workload"], row["scenario"]) for row in table))
    figure, axes = panels(len(places), len(titles), 9.5, 0.8 + 1.55 * len(places))
    below: str | None = None
    for number, (workload, scenario) in reversed(list(enumerate(places))):
        mine = [r for r in table if (r["workload"], r["scenario"]) == (workload, scenario)]
        x = _x_axis(mine)
        for panel, metric in zip(axes[number], titles, strict=True):
            _panel(panel, mine, x, metric, labelled=x != below)
        below = x
        latency = "TTFT" if workload == "long-qa" else "program"
        axes[number][0].set_ylabel(f"{workload} {scenario}\n({latency} latency)")
    for panel, title in zip(axes[0], titles.values(), strict=True):
        panel.set_title(title, fontsize=8)
    caption(
        figure,
        "DLPM Fig. 7: service, fairness and latency with one heavy client, "
        + ("at the rerun's settings" if _whole(cells) else "at fairbench's defaults"),
        f"{provenance(cells)}. Open marks: at least so much, programs were unfinished at the end. "
        + (AT_PRESET if _whole(cells) else GREY),
        axes[0][1],
    )
    return figure


def _x_axis(table: Sequence[dict[str, Any]]) -> str:
    pools = {row.get(POOL) for row in table}
    return POOL if len(pools) > 1 and len({row["dp"] for row in table}) == 1 else "dp"


def _lacks_preble(table: Sequence[dict[str, Any]]) -> bool:
    alone = {row["scheduler"] for row in table if row["dp"] == 1}
    return bool(alone) and not alone & set(PREBLES)


def _has(row: dict[str, Any], x: str, tick: float, metric: str) -> bool:
    return row[x] == tick and row[metric] is not None


def _panel(
    axes: Axes, table: Sequence[dict[str, Any]], x: str, metric: str, *, labelled: bool
) -> None:
    shown = in_units(table, metric, 1000 if metric == "service_rate_tok_s" else 1)
    for scheduler in dict.fromkeys(row["scheduler"] for row in table):
        plot_rows(axes, shown, x, metric, scheduler)
    ticks = sorted({row[x] for row in table})
    if metric.startswith("jain_index"):
        if REACHABLE in table[0]:
            best = [max(row[REACHABLE] or 0.0 for row in table if row[x] == tick) for tick in ticks]
            axes.plot(ticks, best, color="0.6", linewidth=3, zorder=0, label="max-min fair")
        axes.set_ylim(0.3, 1.03)
    elif metric.startswith("victim"):
        log_y(axes)
    else:
        axes.set_ylim(bottom=0)
    unit = 1000 if x == POOL else 1
    absent = [tick / unit for tick in ticks if not any(_has(row, x, tick, metric) for row in table)]
    words = f"undefined at {absent[0]:g}" if absent else ""
    if metric == next(iter(COLUMNS)) and _lacks_preble(table):
        words = "no Preble on one replica"
    if words:
        axes.text(0.02, 0.02, words, fontsize=6, color="0.4", transform=axes.transAxes)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick / unit:g}" if labelled else "" for tick in ticks])
    if labelled:
        axes.set_xlabel(X_AXES[x])
    axes.minorticks_off()
