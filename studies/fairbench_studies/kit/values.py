"""Metrics of configurations, for figures and claims that compare schedulers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fairbench.results.comparison import SchedulerResults
from fairbench_papers.style import scheduler_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Estimate(NamedTuple):
    """A metric's mean over seeds with its confidence interval.

    ``at_least`` marks a mean that is a lower bound. A single seed gives an interval of width 0.
    """

    mean: float
    low: float
    high: float
    at_least: bool


def value_of(cell: SchedulerResults, metric: str) -> Estimate | None:
    """Return a metric's mean over seeds with its interval, or None if the metric is undefined."""
    found = cell.combined[metric]
    if found is None:
        return None
    mean = found["mean"]
    low, high = (mean if found[end] is None else found[end] for end in ("low", "high"))
    return Estimate(mean, low, high, bool(found.get("lower_bound")))


def mean_of(cell: SchedulerResults, metric: str) -> float | None:
    """Return a metric's mean over seeds."""
    found = value_of(cell, metric)
    return None if found is None else found.mean


def setting_of(cell: SchedulerResults, name: str) -> Any:
    """Return the value of a setting of a configuration, such as ``dlpm.quantum``."""
    part, _, parameter = name.partition(".")
    return cell.runs[0].experiment["settings"][part][parameter]


def chosen(cells: Iterable[SchedulerResults], **wanted: Any) -> list[SchedulerResults]:
    """Return the results whose fields have the values ``wanted``, as in ``scheduler="vtc"``."""
    return [c for c in cells if all(c.combined[key] == value for key, value in wanted.items())]


def schedulers(cells: Iterable[SchedulerResults]) -> list[str]:
    """Return the names of the schedulers in ``cells``, in order of appearance."""
    return list(dict.fromkeys(cell.combined["scheduler"] for cell in cells))


def row_of(cell: SchedulerResults, metrics: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return a CSV row: a configuration's name, the fields ``more``, and metrics with intervals."""
    row = {key: cell.combined[key] for key in ("workload", "scenario", "dp", "scheduler")} | more
    for metric in metrics:
        found = value_of(cell, metric)
        row[metric] = found.mean if found else None
        row[f"{metric}_low"] = found.low if found else None
        row[f"{metric}_high"] = found.high if found else None
        row[f"{metric}_at_least"] = bool(found and found.at_least)
    return row


def in_units(rows: Sequence[dict[str, Any]], metric: str, unit: float) -> list[dict[str, Any]]:
    """Return copies of the rows in which a metric and its interval are divided by ``unit``."""
    keys = (metric, f"{metric}_low", f"{metric}_high")
    return [row | {k: row[k] / unit for k in keys if row[k] is not None} for row in rows]


def label_on(scheduler: str, replicas: Iterable[int]) -> str:
    """Return a scheduler's label for plots, without the router if there is a single replica."""
    label = scheduler_style(scheduler).label
    return label.removeprefix("RR + ") if set(replicas) == {1} else label


def plot_rows(
    axes: Axes, rows: Sequence[dict[str, Any]], x: str, metric: str, scheduler: str
) -> None:
    """Plot a metric with its intervals against column ``x``; open markers are lower bounds."""
    style = scheduler_style(scheduler)
    mine = [row for row in rows if row["scheduler"] == scheduler and row[metric] is not None]
    ends = {row[x]: (row[metric], row[f"{metric}_low"], row[f"{metric}_high"]) for row in mine}
    line_with_band(axes, ends, color=style.colour, linestyle=style.line)
    for row in mine:
        filled = "white" if row[f"{metric}_at_least"] else style.colour
        axes.plot(row[x], row[metric], style.marker, color=style.colour, markerfacecolor=filled)
    label = label_on(scheduler, [row["dp"] for row in rows])
    axes.plot([], [], style.marker, color=style.colour, linestyle=style.line, label=label)


def line_with_band(
    axes: Axes, ends: Mapping[float, tuple[float, float, float]], **look: Any
) -> None:
    """Draw a line through means, with a band for the means' confidence intervals.

    ``ends`` maps each x to a mean and to the ends of the confidence interval of the mean. The mean
    and the two ends may be in any order, because the line follows the median of the three values.
    """
    from seaborn import lineplot

    band = ("pi", 100) if any(low != high for _, low, high in ends.values()) else None
    lineplot(
        x=[x for x in ends for _ in range(3)], y=[end for of in ends.values() for end in of],
        estimator="median", errorbar=band, err_kws={"alpha": 0.15, "linewidth": 0},
        ax=axes, legend=False, **look,
    )  # fmt: skip
