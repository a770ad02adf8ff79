"""A figure of a plan: the number of replicas that is enough at each load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairbench.figures.style import caption, drawn_to, scheduler_style
from fairbench.report.palette import SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def draw_plan(answer: Row, path: Path, title: str) -> None:
    """Write the figure of ``answer.json``. Raises UsageError on failure."""
    by_name: dict[str, list[Row]] = {}
    several = len({row["timing_profile"] for row in answer["choices"]}) > 1
    for row in answer["choices"]:
        gpu = f" on {row['timing_profile'].split('/')[0]}" if several else ""
        by_name.setdefault(row["scheduler"] + gpu, []).append(row)
    with drawn_to(path, 1, 5.5, 3.2) as (figure, (panel,)):
        for number, (name, rows) in enumerate(by_name.items()):
            _line(panel, number, name, rows, several=several)
        _tried(panel, next(iter(by_name.values())))
        if answer["rate"] is None:
            panel.set_xlabel("load, as a multiple of the trace's load")
        else:
            rate = f"{answer['rate']:.3g} programs/s of each well-behaved client"
            panel.set_xlabel(f"load, in {rate}")
        panel.set_ylabel("replicas")
        found = [row["replicas"] for row in answer["choices"]]
        most = int(answer["high"]) if None in found else min(answer["high"], max(found) + 1)
        panel.set_ylim(0, most * 1.08 + 0.5)
        panel.yaxis.get_major_locator().set_params(integer=True)
        targets = f"smallest cluster with {', '.join(one['slo'] for one in answer['targets'])}"
        caption(figure, targets, title, panel, columns=2 if several else 3)


def _line(panel: Axes, number: int, name: str, rows: list[Row], *, several: bool) -> None:
    style = scheduler_style(rows[0]["scheduler"])
    colour = SERIES[number % len(SERIES)].colour if several else style.colour
    known = [(row["load"], row["replicas"]) for row in rows if row["replicas"] is not None]
    label = name if several else style.label
    panel.plot(
        [load for load, _ in known], [dp for _, dp in known], color=colour, linestyle=style.line,
        marker=style.marker, label=label if known else f"{label}: none suffices",
    )  # fmt: skip


def _tried(panel: Axes, rows: list[Row]) -> None:
    """Plot the clusters of the planned choice that were tested and turned out too small."""
    points = [
        (row["load"], one["replicas"]) for row in rows for one in row["tried"] if not one["enough"]
    ]
    if points:
        panel.plot(
            [load for load, _ in points], [dp for _, dp in points], color="0.55", marker="x",
            linestyle="", label="tried, not enough", zorder=1,
        )  # fmt: skip
