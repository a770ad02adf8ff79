"""Figure 1 ([DLPM] §1): throughput against fairness on one A10G, under DLPM, LPM and VTC.

The figure has one point per quantum of DLPM. Points further up and to the right are better.
According to the paper, DLPM's points lie beyond the line from VTC to LPM. In a second DLPM curve, a
new client starts with one quantum of credit ([gaps] A13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fairbench.results.comparison import SchedulerResults
from fairbench_papers.style import caption, panels, scheduler_style
from fairbench_studies.kit.provenance import provenance
from fairbench_studies.kit.seeds import value_at
from fairbench_studies.kit.values import label_on, row_of, setting_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAIRNESS = {
    "jain_index": "Jain's index of the service rate",
    "min_entitlement_ratio": "minimum fair share of own total",
}
THROUGHPUT = "service_rate_tok_s"
MARK = 30  # area of a marker in square points
JOINED = ", newcomers with a quantum"


def quantum_of(cell: SchedulerResults) -> int | None:
    """Return the quantum Q^u in tokens, or None if the scheduler is not DLPM."""
    return setting_of(cell, "dlpm.quantum") if cell.combined["scheduler"] == "dlpm" else None


def joins_with_quantum(cell: SchedulerResults) -> bool:
    """Return whether new clients start with a quantum of credit, unlike in [DLPM] Algorithm 1."""
    return bool(value_at(cell.runs[0].experiment, "settings.dlpm.join") == "quantum")


def rows(cells: Sequence[SchedulerResults]) -> list[dict[str, Any]]:
    """Return a row per configuration, with the quantum and the credit of new clients (``join``)."""
    metrics = (THROUGHPUT, *FAIRNESS)
    return [
        row_of(cell, metrics, quantum_tokens=quantum_of(cell), join=_join(cell)) for cell in cells
    ]


def _join(cell: SchedulerResults) -> str | None:
    if quantum_of(cell) is None:
        return None
    return "quantum" if joins_with_quantum(cell) else "zero"


def draw(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw throughput against the paper's fairness measure, and against the minimum fair share."""
    table = rows(cells)
    figure, axes = panels(1, len(FAIRNESS), 8.0, 3.6, sharey=True)
    for panel, (metric, label) in zip(axes[0], FAIRNESS.items(), strict=True):
        _panel(panel, table, metric)
        panel.set_xlabel(label)
    axes[0][0].set_ylabel("service rate, 1000 tok/s")
    caption(
        figure,
        "DLPM Fig. 1: throughput against fairness, trees of thought on one A10G",
        f"{provenance(cells)}.{_range(table)}",
        axes[0][0],
    )
    return figure


def _range(table: Sequence[dict[str, Any]]) -> str:
    quanta = [row["quantum_tokens"] for row in table if row["quantum_tokens"]]
    if not quanta:  # if no run under DLPM has finished
        return ""
    least, most = min(quanta), max(quanta)
    return f" DLPM: the number beside a point (left) is Q^u, {least:,} to {most:,} tokens."


def _panel(axes: Axes, table: Sequence[dict[str, Any]], metric: str) -> None:
    for scheduler, join in dict.fromkeys((row["scheduler"], row["join"]) for row in table):
        style = scheduler_style(scheduler)
        of_curve = [row for row in table if (row["scheduler"], row["join"]) == (scheduler, join)]
        mine = [row for row in of_curve if None not in (row[metric], row[THROUGHPUT])]
        second = join == "quantum"
        label = label_on(scheduler, [row["dp"] for row in of_curve])
        axes.errorbar(
            [row[metric] for row in mine],
            [row[THROUGHPUT] / 1000 for row in mine],
            xerr=_arms(mine, metric, 1),
            yerr=_arms(mine, THROUGHPUT, 1000),
            color=style.colour, marker=style.marker, markersize=2,
            linestyle="--" if second else ":", markerfacecolor="none" if second else style.colour,
            label=label + JOINED if second else label,
            ecolor=(style.colour, 0.25), elinewidth=1.0,
        )  # fmt: skip
        axes.scatter(
            [row[metric] for row in mine],
            [row[THROUGHPUT] / 1000 for row in mine],
            MARK, marker=style.marker, zorder=3,
            facecolors="none" if second else (style.colour, 0.6),
            edgecolors=style.colour if second else "none", linewidths=1.0 if second else 0,
        )  # fmt: skip
        for number, row in enumerate(mine):
            if row["join"] == "zero" and metric == next(iter(FAIRNESS)):
                _name(axes, (row[metric], row[THROUGHPUT] / 1000), row["quantum_tokens"], number)


def _name(axes: Axes, place: tuple[float, float], quantum: int, number: int) -> None:
    side = 1 if number % 2 else -1
    axes.annotate(
        f"{quantum / 1000:g}k", place, (6 * side, 5 * side), textcoords="offset points",
        ha="left" if side > 0 else "right", va="bottom" if side > 0 else "top", fontsize=7,
    )  # fmt: skip


def _arms(rows: Sequence[dict[str, Any]], metric: str, unit: float) -> list[list[float]]:
    return [
        [(row[metric] - row[f"{metric}_low"]) / unit for row in rows],
        [(row[f"{metric}_high"] - row[metric]) / unit for row in rows],
    ]
