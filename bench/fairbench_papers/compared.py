"""Figures that compare schedulers: bar charts, charts of two metrics, distributions and curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.errors import UsageError, unknown_name
from fairbench.metrics.catalogue import CATALOGUE
from fairbench.metrics.censored_latency import Sample, pooled, samples
from fairbench.metrics.records import Floats, Window
from fairbench.report.comparison_table import tail_of
from fairbench.results.comparison import ComparedRun, SchedulerResults, by_place, seed_text
from fairbench.results.run_facts import read_tables, stored_facts
from fairbench.results.significance import METHOD
from fairbench.results.summary import bases
from fairbench.results.sweeps import SweepLine, axes_of
from fairbench_papers.style import (
    SeriesStyle,
    caption,
    check_drawable,
    log_x,
    log_y,
    panels,
    paper_style,
    plain_span,
    save_in,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SERVICE, SHARE = "service_rate_tok_s", "min_entitlement_best_ratio"
WIDTH_IN, ROW_IN, BAR_IN = 8.0, 2.6, 0.28
COLUMNS = 3
LATENCY = {"ttft": "time to the first token, s", "program": "latency of a program, s"}

Cells = Sequence[SchedulerResults]


def bars(cells: Cells) -> Figure:
    """Draw throughput, fairness and latency as bars with 95% intervals, by configuration."""
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
    """Return the metrics to draw, with axis labels and factors that convert to the labels' units.

    Metrics that are undefined under every scheduler are left out.
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
    """Draw P95 latency against throughput, with one mark per scheduler."""
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
            plain_span(axis)
        axis.set_xlabel("service, 1,000 tok/s")

    title = "Latency against throughput: down and right is better"
    return _of_places(cells, tail_label(tail), title, one)


def cdfs(cells: Cells) -> Figure:
    """Draw the latency distribution of the well-behaved clients over all seeds.

    Refused and unfinished requests count, too, so a curve may end below 100%.
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
    """Return the key of the highest latency percentile that all runs have."""
    return f"victim_p{tail_of(cells)}_s"


def tail_label(tail: str) -> str:
    """Return the axis label of a latency percentile; ``tail`` is its metric key."""
    return f"well-behaved {CATALOGUE[tail].column.split()[0]}, s"


def _of_places(
    cells: Cells,
    label: str,
    title: str,
    one: Callable[[Axes, Cells, Mapping[str, SeriesStyle]], None],
) -> Figure:
    """Draw one panel per configuration by calling ``one``, and a legend above all panels."""
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
    caption(figure, title, provenance_of(cells), _fullest(grid))
    return figure


def _styles(cells: Cells) -> Mapping[str, SeriesStyle]:
    return styles_of(dict.fromkeys(cell.scheduler for cell in cells))


Ends = tuple[float, float, float]
"""The mean of a metric, and the low and high end of its confidence interval."""


def arms(found: Sequence[Ends]) -> list[list[float]]:
    """Return the lengths of error bars below and above each mean."""
    return [[mean - low for mean, low, _ in found], [high - mean for mean, _, high in found]]


def interval(cell: SchedulerResults, key: str, unit: float) -> Ends | None:
    """Return a metric's mean, low and high; without a confidence interval, all three are equal."""
    found: Any = cell.combined.get(key)
    if found is None:
        return None
    ends = (found["mean"] if found[end] is None else found[end] for end in ("low", "high"))
    low, high = ends
    return found["mean"] * unit, low * unit, high * unit


def provenance_of(cells: Cells) -> str:
    """Return a caption on the origin of the numbers: simulated or measured, hardware and seeds."""
    where = bases(cell.combined for cell in cells)
    seeds = sorted({seed for cell in cells for seed in cell.combined["seeds"]})
    return f"{where}; {seed_text(seeds)}" + (f": {METHOD}" if len(seeds) > 1 else "")


def distribution(cell: SchedulerResults) -> tuple[Floats, Floats] | None:
    """Return ascending latencies in seconds, and the percentage of requests up to each latency.

    The result is None if no run is stored on disk, or if no request finished. The percentages refer
    to all requests, so the curve ends below 100% if some latencies are unknown.
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
SHIFT_PT = 2.5  # Marks of lines with equal x values are this many points apart.


def against_parameter(cells: Cells) -> Figure:
    """Draw throughput, fairness and latency as lines over each swept parameter.

    A swept parameter is a scheduler's parameter, a load, or the number of replicas. Each swept
    parameter and configuration has a row of panels. Error bars are 95% confidence intervals.
    """
    rows = [(axis, place, lines) for axis in axes_of(cells) for place, lines in axis.places.items()]
    names = dict.fromkeys(line.scheduler for _, _, lines in rows for line in lines)
    metrics, styles = bar_metrics(cells), styles_of(names)
    figure, grid = panels(len(rows), len(metrics), WIDTH_IN, 0.9 + PARAMETER_ROW_IN * len(rows))
    for row, (axis, place, lines) in zip(grid, rows, strict=True):
        for panel, (key, (label, unit)) in zip(row, metrics.items(), strict=True):
            _draw_lines(figure, panel, lines, styles, key, unit)
            panel.set(xlabel=axis.label, ylabel=label)
            if axis.is_log:
                log_x(panel)
            if axis.ticks:
                panel.set_xticks(axis.ticks, [f"{value:,.15g}" for value in axis.ticks])
        row[0].set_title(place, loc="left", fontsize=9)
    title = f"Metrics over {' and '.join(dict.fromkeys(axis.name for axis, _, _ in rows))}"
    caption(figure, title, provenance_of(cells), _fullest(grid))
    return figure


def _draw_lines(
    figure: Figure,
    panel: Axes,
    lines: Sequence[SweepLine],
    styles: Mapping[str, SeriesStyle],
    key: str,
    unit: float,
) -> None:
    """Draw one line per scheduler, shifted slightly so that error bars do not overlap."""
    from matplotlib.transforms import offset_copy

    for number, line in enumerate(lines):
        style = styles[line.scheduler]
        known = [(at, ends) for at, cell in line.points if (ends := interval(cell, key, unit))]
        at, found = [at for at, _ in known], [ends for _, ends in known]
        shift_pt = SHIFT_PT * (number - (len(lines) - 1) / 2)
        panel.errorbar(
            at, [mean for mean, _, _ in found], yerr=arms(found),
            color=style.colour, marker=style.marker, linestyle=style.line, label=style.label,
            elinewidth=0.8, capsize=1.5,
            transform=offset_copy(panel.transData, figure, shift_pt, units="points"),
        )  # fmt: skip
        # Axis limits follow from the true values, not from the shifted marks.
        panel.update_datalim([point for x, (*_, high) in known for point in ((x, 0), (x, high))])
    panel.autoscale_view()
    panel.set_ylim(0, None)


def _fullest(grid: Iterable[Iterable[Axes]]) -> Axes:
    """Return the panel whose legend has the most entries."""
    panels = (panel for row in grid for panel in row)
    return max(panels, key=lambda panel: len(panel.get_legend_handles_labels()[1]))


KINDS: Mapping[str, Callable[[Sequence[SchedulerResults]], Figure]] = {
    "bars": bars,
    "tradeoff": tradeoff,
    "cdf": cdfs,
    "parameter": against_parameter,
}


def drawn(cells: Sequence[SchedulerResults], kind: str) -> Figure:
    """Return a figure of the given ``kind``.

    Raises UsageError for an unknown ``kind``, or without the packages of the extra ``plot``.
    """
    if kind not in KINDS:
        raise unknown_name("kind of picture", kind, KINDS)
    if kind == "cdf" and not _have_latencies(cells):
        raise UsageError("kind 'cdf': needs result_dir, because latencies are read from saved runs")
    if kind == "parameter" and not axes_of(cells):
        raise UsageError(
            "kind 'parameter': needs a sweep over a parameter, the load or the number of replicas"
        )
    check_drawable()
    with paper_style():
        return KINDS[kind](cells)


def write_pictures(
    cells: Sequence[SchedulerResults], output: Path, name: str, formats: Sequence[str]
) -> list[Path]:
    """Write a figure of every kind, and return the paths of the files.

    Raises UsageError if a file cannot be written.
    """
    check_drawable()
    written: list[Path] = []
    for kind, draw in KINDS.items():
        if kind == "cdf" and not _have_latencies(cells):
            continue
        if kind == "parameter" and not axes_of(cells):
            continue
        with paper_style():
            written += save_in(draw(cells), output, f"{name}-{kind}", formats)
    return written


def _have_latencies(cells: Sequence[SchedulerResults]) -> bool:
    return any(distribution(cell) is not None for cell in cells)
