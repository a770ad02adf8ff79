"""The picture of all measured runs: simulated against measured values, with a marker per run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbench.report.palette import SERIES
from fairbench_studies.validation.overview.points import METRICS, Point
from fairbench_studies.validation.overview.table import WITHIN_PCT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN, HEIGHT_IN, DPI = 11.0, 7.0, 110
ERROR_LIMIT_PCT = 45.0  # Larger errors are written as numbers at the edge of the panel.
# Two numbers at the edge of a panel would overlap if the measured values of their points differ by
# less than ``NEAR`` powers of ten. Only the largest of several overlapping numbers is written.
NEAR = 0.4
MARKERS = "osD^vP*X"  # one plot marker for each engine


def draw(points: Sequence[Point], paths: Sequence[Path]) -> None:
    """Save the picture of simulation errors to each of ``paths``; the suffix sets the format.

    The upper panels show simulated and measured values; the lower panels show simulation errors.
    Equal points give byte-identical SVG files. Requires matplotlib.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    marks = _marks(points)
    with rc_context({"font.size": 8, "svg.hashsalt": "fairbench", "svg.fonttype": "none"}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = figure.subplots(2, len(METRICS), height_ratios=(1.5, 1), sharex="col")
        for column, metric in enumerate(METRICS):
            some = [point for point in points if metric in point.pairs]
            _values(axes[0][column], some, metric, marks)
            _errors(axes[1][column], some, metric, marks)
        fitted = sum(point.fitted for point in points)
        figure.suptitle(
            f"{len(points)} measured runs, simulated: a dot for each run "
            f"(open: something was fitted to the run, {fitted})"
        )
        _legend(figure, points, marks)
        for path in paths:
            # The file gets no date, so that equal numbers give equal files.
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(path, dpi=DPI, metadata=metadata)


def _server(point: Point) -> str:
    return f"{point.engine}, {point.gpu}"


def _marks(points: Sequence[Point]) -> dict[str, tuple[str, str]]:
    engines = sorted({point.engine for point in points})
    gpus = sorted({point.gpu for point in points})
    return {
        _server(point): (
            MARKERS[engines.index(point.engine) % len(MARKERS)],
            SERIES[gpus.index(point.gpu) % len(SERIES)].colour,
        )
        for point in points
    }


def _style(point: Point, marks: dict[str, tuple[str, str]]) -> dict[str, Any]:
    marker, colour = marks[_server(point)]
    return {
        "marker": marker,
        "markersize": 4.5,
        "markeredgecolor": colour,
        "markerfacecolor": "none" if point.fitted else colour,
        "linestyle": "none",
        "alpha": 0.75,
    }


def _values(axes: Axes, points: list[Point], metric: str, marks: dict[str, Any]) -> None:
    axes.set_title(f"{metric} ({METRICS[metric]})")
    if not points:
        return
    values = [value for one in points for value in _both(one, metric)]
    ends = [min(values) / 1.5, max(values) * 1.5]
    share = WITHIN_PCT[metric] / 100
    low, high = ([end * (1 + sign * share) for end in ends] for sign in (-1, 1))
    axes.fill_between(ends, low, high, color="0.85", linewidth=0)
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    for point in points:
        simulated, measured = _both(point, metric)
        axes.plot(measured, simulated, **_style(point, marks))
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_ylabel("simulated")


def _errors(axes: Axes, points: list[Point], metric: str, marks: dict[str, Any]) -> None:
    within = WITHIN_PCT[metric]
    axes.axhspan(-within, within, color="0.85", linewidth=0)
    axes.axhline(0, color="0.4", linewidth=0.8)
    numbered: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda one: -abs(one.pairs[metric].error_pct or 0.0)):
        error = point.pairs[metric].error_pct or 0.0
        shown = max(-ERROR_LIMIT_PCT, min(ERROR_LIMIT_PCT, error))
        measured = point.pairs[metric].measured
        axes.plot(measured, shown, **_style(point, marks))
        side, place = float(np.sign(error)), float(np.log10(measured))
        near = any(side == where and abs(place - at) < NEAR for where, at in numbered)
        if shown != error and not near:
            numbered.append((side, place))
            axes.annotate(f"{error:+.0f}%", (measured, shown), (4, -6 * side),
                          textcoords="offset points", va="center", fontsize=6)  # fmt: skip
    axes.set_ylim(-ERROR_LIMIT_PCT - 5, ERROR_LIMIT_PCT + 5)
    axes.set_xlabel(f"measured {metric} ({METRICS[metric]})")
    axes.set_ylabel(f"error, % (shaded: {within:g}%)")


def _both(point: Point, metric: str) -> tuple[float, float]:
    pair = point.pairs[metric]
    return pair.simulated, pair.measured


def _legend(figure: Any, points: Sequence[Point], marks: dict[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], marker=marker, color=colour, linestyle="none", markersize=5,
               label=f"{server} ({sum(_server(point) == server for point in points)})")
        for server, (marker, colour) in sorted(marks.items())
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=7)
