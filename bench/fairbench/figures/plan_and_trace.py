"""The figure of a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairbench.errors import printable
from fairbench.figures.style import caption, client_style, drawn_to
from fairbench.files.times import ClockTime
from fairbench.report.pages.chart import time_axis
from fairbench.workloads.traces.table import TraceTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 60  # A trace is divided into this number of time bins.
SHOWN = 6

REST = "0.7"  # Clients without a line of their own share a line in this grey.


def draw_trace(table: TraceTable, path: Path, title: str, clock: ClockTime | None = None) -> None:
    """Draw the load of a trace over time to a file.

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
