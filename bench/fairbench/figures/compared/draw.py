"""Pictures of compared schedulers: bars, a trade-off, distributions, and a swept parameter."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairbench.figures.style import SeriesStyle, caption, log_x, log_y, panels, styles_of
from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.censored_latency import Sample, pooled, samples
from fairbench.metrics.records import Floats, Window
from fairbench.report.comparison_table import tail_of
from fairbench.results.comparison import ComparedRun, SchedulerResults, by_place
from fairbench.results.header import bases
from fairbench.results.intervals import METHOD
from fairbench.results.pair_comparison import seed_text
from fairbench.results.run_facts import stored_facts
from fairbench.results.run_tables import read_tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERVICE, SHARE = "service_rate_tok_s", "min_entitlement_best_ratio"
WIDTH_IN, ROW_IN, BAR_IN = 8.0, 2.6, 0.28
COLUMNS = 3  # panels in a row
LATENCY = {"ttft": "time to the first token, s", "program": "latency of a program, s"}

Cells = Sequence[SchedulerResults]


def bars(cells: Cells) -> Figure:
    """Draw throughput, fairness and latency as bars with 95% intervals, a row per configuration."""
    metrics = bar_metrics(cells)
    places, styles = by_place(cells), _styles(cells)
    longest = max(map(len, places.values()))
    height_in = len(places) * (0.9 + BAR_IN * longest)
    figure, axes = panels(len(places), len(metrics), WIDTH_IN, height_in, sharey="row")
    for row, (place, here) in zip(axes, places.items(), strict=True):
        for axis, (key, (label, unit)) in zip(row, metrics.items(), strict=True):
            for at, cell in enumerate(here):
                found = interval(cell, key, unit)
                if found is not None:
                    axis.barh(at, found[0], color=styles[cell.scheduler].colour, height=0.7)
                    axis.errorbar(found[0], at, xerr=arms([found]), color="0.2", linewidth=1.0)
            axis.set(xlabel=label, xlim=(0, None))
        row[0].set_yticks(range(len(here)), [styles[cell.scheduler].label for cell in here])
        row[0].set(ylim=(len(here) - 0.5, -0.5))
        row[0].set_title(place, loc="left", fontsize=9)
    figure.supxlabel(provenance_of(cells), fontsize=7)
    return figure


def bar_metrics(cells: Cells) -> dict[str, tuple[str, float]]:
    """Return the drawn metrics by key: label, and factor to the label's unit.

    Metrics without a value in any cell are left out, such as shares below saturation.
    """
    tail = tail_key(cells)
    metrics = {
        SERVICE: ("service, 1,000 tok/s", 1e-3),
        SHARE: ("min. fair share of best, %", 100.0),
        tail: (tail_label(tail), 1.0),
    }
    return {
        key: (label, unit)
        for key, (label, unit) in metrics.items()
        if any(interval(cell, key, unit) is not None for cell in cells)
    }


def tradeoff(cells: Cells) -> Figure:
    """Draw P95 latency against throughput, one mark per scheduler."""
    tail = tail_key(cells)

    def one(axis: Axes, here: Cells, styles: Mapping[str, SeriesStyle]) -> None:
        for cell in here:
            across, up = interval(cell, SERVICE, 1e-3), interval(cell, tail, 1.0)
            if across is None or up is None:
                continue
            style = styles[cell.scheduler]
            axis.errorbar(
                across[0], up[0],
                xerr=arms([across]), yerr=arms([up]),
                color=style.colour, marker=style.marker, linestyle="none", label=style.label,
                elinewidth=0.8,
            )  # fmt: skip
        if axis.containers:
            log_y(axis)
        axis.set_xlabel("service, 1,000 tok/s")

    title = "Latency against throughput: down and right is better"
    return _of_places(cells, tail_label(tail), title, one)


def cdfs(cells: Cells) -> Figure:
    """Draw the latency distribution of the well-behaved clients over all seeds.

    The curve stays below 100% by the requests that never finished or were refused.
    """

    def one(axis: Axes, here: Cells, styles: Mapping[str, SeriesStyle]) -> None:
        for cell in here:
            found = distribution(cell)
            if found is not None:
                style = styles[cell.scheduler]
                axis.step(
                    *found, where="post", color=style.colour, linestyle=style.line,
                    label=style.label,
                )  # fmt: skip
        kind = str(here[0].combined.get("latency", "program"))
        axis.set(xlabel=LATENCY.get(kind, "latency, s"), ylim=(0, 101))
        if axis.lines:
            log_x(axis)

    return _of_places(cells, "fraction of latencies, %", "Latencies, well-behaved", one)


def tail_key(cells: Cells) -> str:
    """Return the metric of the highest latency percentile that all runs support."""
    return f"victim_p{tail_of(cells)}_s"


def tail_label(tail: str) -> str:
    """Return the label of the axis of ``tail_key``."""
    return f"well-behaved {CATALOGUE[tail].column.split()[0]}, s"


def _of_places(
    cells: Cells,
    label: str,
    title: str,
    one: Callable[[Axes, Cells, Mapping[str, SeriesStyle]], None],
) -> Figure:
    """Draw a panel for each configuration, with one legend above all."""
    places, styles = by_place(cells), _styles(cells)
    columns = min(COLUMNS, len(places))
    rows = -(-len(places) // columns)
    width_in = WIDTH_IN if columns > 1 else 0.7 * WIDTH_IN
    figure, grid = panels(rows, columns, width_in, 0.9 + ROW_IN * rows)
    axes = [axis for row in grid for axis in row]
    for axis, (place, here) in zip(axes, places.items(), strict=False):
        one(axis, here, styles)
        axis.set_title(place, fontsize=9)
    for axis in axes[len(places) :]:
        axis.set_visible(False)
    for row in grid:
        row[0].set_ylabel(label)
    fullest = max(axes, key=lambda axis: len(axis.get_legend_handles_labels()[1]))
    caption(figure, title, provenance_of(cells), fullest)
    return figure


def _styles(cells: Cells) -> Mapping[str, SeriesStyle]:
    return styles_of(dict.fromkeys(cell.scheduler for cell in cells))


Ends = tuple[float, float, float]
"""A mean, and the ends of its interval."""


def arms(found: Sequence[Ends]) -> list[list[float]]:
    """Return the lengths of the arms of error bars, below and above."""
    return [[mean - low for mean, low, _ in found], [high - mean for mean, _, high in found]]


def interval(cell: SchedulerResults, key: str, unit: float) -> Ends | None:
    """Return mean and interval of a metric; for one seed or a bound, only the mean."""
    found: Any = cell.combined.get(key)
    if found is None:
        return None
    ends = (found["mean"] if found[end] is None else found[end] for end in ("low", "high"))
    low, high = ends
    return found["mean"] * unit, low * unit, high * unit


def provenance_of(cells: Cells) -> str:
    """Return whether the numbers are simulated, on what hardware, and over which seeds."""
    where = bases(cell.combined for cell in cells)
    seeds = sorted({seed for cell in cells for seed in cell.combined["seeds"]})
    return f"{where}; {seed_text(seeds)}" + (f": {METHOD}" if len(seeds) > 1 else "")


def distribution(cell: SchedulerResults) -> tuple[Floats, Floats] | None:
    """Return ascending latencies in seconds, and the percentage that is at most as long.

    The result is None if no run is stored on disk, or no request finished. The total includes
    unknown latencies, so that the last percentage is below 100 if there are any.
    """
    found = [sample for run in cell.runs if run.run.path.is_dir() for sample in _well_behaved(run)]
    if not found or not sum(len(one.known_s) for one in found):
        return None
    together = pooled(found)
    ascending = np.sort(together.known_s)
    return ascending, 100.0 * np.arange(1, len(ascending) + 1) / together.n


def _well_behaved(run: ComparedRun) -> list[Sample]:
    tables = read_tables(run.run)
    window = Window(run.summary["window_start_s"], run.summary["window_end_s"])
    facts = stored_facts(run.run, window)
    each = samples(tables.requests, tables.programs, facts)
    return [
        sample for client, sample in zip(facts.clients, each, strict=True) if not client.misbehaving
    ]


PARAMETER_ROW_IN = 2.4
VALUE = re.compile(r" (\S+)=([-+]?[\d.]+(?:e[-+]?\d+)?)(?= |$)")


class Swept(NamedTuple):
    """A scheduler's label without the swept parameter, the parameter, and its value."""

    scheduler: str
    parameter: str
    value: float


def swept(cells: Sequence[SchedulerResults]) -> dict[int, Swept]:
    """Return the swept parameter of each cell by index; empty unless a parameter has two values."""
    found = {}
    for index, cell in enumerate(cells):
        matches = list(VALUE.finditer(cell.scheduler))
        if len(matches) == 1:
            one = matches[0]
            rest = cell.scheduler.replace(one[0], "")
            found[index] = Swept(rest, one[1], float(one[2]))
    several = {(one.parameter, one.value) for one in found.values()}
    one_parameter = len({parameter for parameter, _ in several}) == 1
    return found if one_parameter and len(several) > 1 else {}


def against_parameter(cells: Sequence[SchedulerResults]) -> Figure:
    """Draw throughput, fairness and latency against the swept parameter, with 95% intervals."""
    found = swept(cells)
    metrics, styles = bar_metrics(cells), styles_of(dict.fromkeys(one[0] for one in found.values()))
    places = list(dict.fromkeys(cells[index].place for index in found))
    figure, axes = panels(len(places), len(metrics), WIDTH_IN, 0.9 + PARAMETER_ROW_IN * len(places))
    for row, place in zip(axes, places, strict=True):
        for axis, (key, (label, unit)) in zip(row, metrics.items(), strict=True):
            for scheduler, style in styles.items():
                points = sorted(
                    (one.value, shown)
                    for index, one in found.items()
                    if cells[index].place == place and one.scheduler == scheduler
                    if (shown := interval(cells[index], key, unit)) is not None
                )
                if points:
                    at, found_at = zip(*points, strict=True)
                    axis.errorbar(
                        at, [one[0] for one in found_at], yerr=arms(found_at),
                        color=style.colour, marker=style.marker, linestyle=style.line,
                        label=style.label, elinewidth=0.8,
                    )  # fmt: skip
            axis.set(xlabel=next(iter(found.values())).parameter, ylabel=label, ylim=(0, None))
        row[0].set_title(place, loc="left", fontsize=9)
    caption(figure, "Metrics against the parameter", provenance_of(cells), axes[0][0])
    return figure
