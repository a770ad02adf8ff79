"""Figures of a capacity plan and of a recorded trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.errors import printable
from fairbench.files.times import ClockTime
from fairbench.report.pages.chart import time_axis
from fairbench.report.palette import SERIES
from fairbench.workloads.traces.table import TraceTable
from fairbench_papers.style import caption, client_style, drawn_to, scheduler_style

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


BINS = 60  # A trace is divided into this number of time bins.
SHOWN = 6

REST = "0.7"  # Clients without a line of their own share a line in this grey.


def draw_trace(table: TraceTable, path: Path, title: str, clock: ClockTime | None = None) -> None:
    """Draw a trace's load over time and its request lengths, and save the figure as ``path``.

    Raises UsageError if the file cannot be written.
    """
    with drawn_to(path, 2, 7.0, 2.8) as (figure, axes):
        _rates(axes[0], table, clock)
        _lengths(axes[1], table)
        caption(figure, "", title, axes[0], columns=4)


def rates(table: TraceTable) -> tuple[list[float], dict[str, list[float]]]:
    """Return the end of each time bin in seconds, and each client's requests/s in each bin."""
    width_s = max(table.span_s, 1e-9) / BINS
    place = np.minimum((table.arrival_s / width_s).astype(np.int64), BINS - 1)
    counts = np.bincount(table.client, minlength=len(table.clients))
    largest = np.argsort(-counts, kind="stable")[:SHOWN]
    found = {
        printable(table.clients[code]): np.bincount(place[table.client == code], minlength=BINS)
        for code in largest
    }
    if len(table.clients) > SHOWN:
        rest = ~np.isin(table.client, largest)
        found[f"{len(table.clients) - SHOWN:,} others"] = np.bincount(place[rest], minlength=BINS)
    ends = [(number + 1) * width_s for number in range(BINS)]
    return ends, {name: (one / width_s).tolist() for name, one in found.items()}


def _rates(panel: Axes, table: TraceTable, clock: ClockTime | None) -> None:
    ends, by_client = rates(table)
    styles = [client_style(number) for number in range(min(len(by_client), SHOWN))]
    colours = [style.colour for style in styles] + [REST] * (len(by_client) - len(styles))
    values = [[one[0], *one] for one in by_client.values()]
    panel.stackplot(
        [0.0, *ends], values, labels=list(by_client), colors=colours, step="pre", linewidth=0
    )
    axis = time_axis(clock, 0.0, ends[-1])
    panel.set_xlabel(axis.label)
    if axis.ticks:
        panel.set_xticks([at for at, _ in axis.ticks], [text for _, text in axis.ticks])
    panel.set_ylabel("requests/s")
    panel.set_ylim(bottom=0)


def _lengths(panel: Axes, table: TraceTable) -> None:
    parts = np.arange(1, len(table) + 1) / len(table)
    for name, tokens, line in (
        ("input", table.input_tokens, "-"),
        ("output", table.output_tokens, "--"),
    ):
        panel.step(np.sort(tokens), parts, where="post", color="0.2", linestyle=line, label=name)
    panel.set_xscale("log")
    panel.set_xlabel("tokens")
    panel.set_ylabel("fraction of the requests")
    panel.legend(frameon=False, fontsize=7)
