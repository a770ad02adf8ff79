"""Figures over time, with a column per scheduler, a row per metric, and a line per client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairbench.metrics.records import Floats
from fairbench.metrics.service import View
from fairbench.results.comparison import SchedulerResults
from fairbench.results.store import StoredRun
from fairbench_papers.style import caption, client_style, panels
from fairbench_papers.timeline import client_names, response_times, service_rates
from fairbench_studies.kit.provenance import of_first_runs
from fairbench_studies.kit.values import label_on

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERVALS = 40


class Measure(NamedTuple):
    """A metric over time, drawn as a row of panels.

    ``of`` returns a run's values by client and time interval; its second argument has the edges of
    the intervals in seconds.
    """

    label: str
    of: Callable[[StoredRun, Floats], Floats]


def _thousands(view: View, run: StoredRun, edges_s: Floats) -> Floats:
    rates: Floats = service_rates(run, view, edges_s) / 1000
    return rates


MEASURES: Mapping[str, Measure] = {
    "response_s": Measure("response time, s", response_times),
    "actual_service_ktok_s": Measure(
        "computed service,\n1000 tok/s", partial(_thousands, View.ACTUAL)
    ),
    "service_ktok_s": Measure("service rate,\n1000 tok/s", partial(_thousands, View.CLIENT)),
}


def rows_over_time(
    cells: Sequence[SchedulerResults], measures: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row per scheduler, client and interval, from the first seed of each scheduler."""
    found = []
    for cell in cells:
        run = cell.runs[0].run
        edges_s = np.linspace(0.0, run.summary["duration"], INTERVALS + 1)
        of_run = {name: MEASURES[name].of(run, edges_s) for name in measures}
        for number, client in enumerate(client_names(run)):
            for interval, start_s in enumerate(edges_s[:-1]):
                found.append(
                    {
                        "scheduler": cell.combined["scheduler"],
                        "client": client,
                        "start_s": float(start_s),
                        "end_s": float(edges_s[interval + 1]),
                        **{name: _defined(of_run[name][number, interval]) for name in measures},
                    }
                )
    return found


def draw_over_time(
    cells: Sequence[SchedulerResults],
    rows: Sequence[Mapping[str, Any]],
    title: str,
    names: Sequence[str],
    roles: Mapping[int, str] = MappingProxyType({}),
) -> Figure:
    """Draw metrics of clients over time.

    Args:
        cells: The results to draw; the figure's caption states their hardware and seeds.
        rows: The values that ``rows_over_time`` returned.
        title: The title of the figure.
        names: The names of the metrics.
        roles: The text in the legend on each client's role, by client number.
    """
    shown = list(dict.fromkeys(row["scheduler"] for row in rows))
    height_in = 1.0 + 1.7 * len(names)
    figure, axes = panels(len(names), len(shown), 9.5, height_in, sharex=True, sharey="row")
    for column, scheduler in enumerate(shown):
        mine = [row for row in rows if row["scheduler"] == scheduler]
        for line, name in enumerate(names):
            for client in dict.fromkeys(row["client"] for row in mine):
                of_client = [row for row in mine if row["client"] == client]
                _line(axes[line][column], of_client, name, roles)
            axes[line][column].axvline(mine[-1]["end_s"], color="0.3", linewidth=0.8)
        name = label_on(scheduler, [_cell_of(cells, scheduler).combined["dp"]])
        axes[0][column].set_title(f"{name}\n{_end(cells, scheduler)}", fontsize=9)
        axes[-1][column].set_xlabel("time, s")
    for line, name in enumerate(names):
        axes[line][0].set(ylabel=MEASURES[name].label, ylim=(0, None))
    caption(
        figure,
        title,
        f"{of_first_runs(cells)}. Response: arrival to last token, mean of the requests that "
        "arrived in each fortieth of the run.",
        axes[0][0],
    )
    return figure


def _end(cells: Sequence[SchedulerResults], scheduler: str) -> str:
    summary = _cell_of(cells, scheduler).runs[0].summary
    return (
        f"{'all done' if not summary['unfinished'] else 'cut off'} at {summary['duration']:,.0f} s"
    )


def _cell_of(cells: Sequence[SchedulerResults], scheduler: str) -> SchedulerResults:
    return next(cell for cell in cells if cell.combined["scheduler"] == scheduler)


def _line(
    axes: Any, rows: Sequence[Mapping[str, Any]], name: str, roles: Mapping[int, str]
) -> None:
    number = int(rows[0]["client"].rpartition("-")[2])
    style = client_style(number)
    label = f"{style.label}: {roles[number]}" if number in roles else style.label
    middle_s = [(row["start_s"] + row["end_s"]) / 2 for row in rows]
    axes.plot(
        middle_s,
        [float("nan") if row[name] is None else row[name] for row in rows],
        color=style.colour, linestyle=style.line, marker=style.marker,
        markersize=3, markevery=4, label=label,
    )  # fmt: skip


def _defined(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
