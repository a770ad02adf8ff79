"""The figure of a capacity plan."""

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
    """Draw the ``answer`` of a capacity plan to a file.

    Raises UsageError if the file cannot be written.
    """
    by_name: dict[str, list[Row]] = {}
    several = len({row["timing_profile"] for row in answer["choices"]}) > 1
    for row in answer["choices"]:
        gpu = f" on {row['timing_profile'].split('/')[0]}" if several else ""
        by_name.setdefault(row["scheduler"] + gpu, []).append(row)
    size = str(answer.get("size", "replicas"))
    with drawn_to(path, 1, 5.5, 3.2) as (figure, (panel,)):
        for number, (name, rows) in enumerate(by_name.items()):
            _line(panel, number, name, rows, size, several=several)
        _tried(panel, next(iter(by_name.values())), size)
        if answer["rate"] is None:
            panel.set_xlabel("load, as a multiple of the trace's load")
        else:
            rate = f"{answer['rate']:.3g} programs/s of each well-behaved client"
            panel.set_xlabel(f"load, in {rate}")
        panel.set_ylabel(size)
        found = [row[size] for row in answer["choices"]]
        most = int(answer["high"]) if None in found else min(answer["high"], max(found) + 1)
        panel.set_ylim(0, most * 1.08 + 0.5)
        panel.yaxis.get_major_locator().set_params(integer=True)
        sought = "smallest cluster" if size == "replicas" else "most users"
        targets = f"{sought} with {', '.join(one['slo'] for one in answer['targets'])}"
        caption(figure, targets, title, panel, columns=2 if several else 3)


def _line(
    panel: Axes, number: int, name: str, rows: list[Row], size: str, *, several: bool
) -> None:
    style = scheduler_style(rows[0]["scheduler"])
    colour = SERIES[number % len(SERIES)].colour if several else style.colour
    known = [(row["load"], row[size]) for row in rows if row[size] is not None]
    label = name if several else style.label
    panel.plot(
        [load for load, _ in known], [count for _, count in known], color=colour,
        linestyle=style.line, marker=style.marker,
        label=label if known else f"{label}: none suffices",
    )  # fmt: skip


def _tried(panel: Axes, rows: list[Row], size: str) -> None:
    """Mark the tested sizes (numbers of replicas or users) that missed a target."""
    points = [(row["load"], one[size]) for row in rows for one in row["tried"] if not one["enough"]]
    if points:
        panel.plot(
            [load for load, _ in points], [count for _, count in points], color="0.55", marker="x",
            linestyle="", label="tried, not enough", zorder=1,
        )  # fmt: skip
