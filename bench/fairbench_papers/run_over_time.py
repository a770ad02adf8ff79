"""A figure of a run over time: service and response times of each client."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from fairbench.metrics.service import View
from fairbench.results.store import StoredRun
from fairbench.results.summary import basis, scheduler_name
from fairbench_papers.style import caption, check_drawable, paper_style
from fairbench_papers.timeline import response_times, service_rates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERVALS = 40
# A legend with more than 12 clients would hide the panels.
NAMED_CLIENTS = 12
SIZE_IN = (8.0, 4.6)
STYLES = ("-", "--", "-.", ":")


def draw(run: StoredRun) -> Figure:
    """Draw each client's service and response times over the run.

    Raises UsageError if the packages of the extra ``plot`` are not installed.
    """
    check_drawable()
    summary = run.summary
    edges_s = np.linspace(0.0, summary["duration"], INTERVALS + 1)
    panels = {
        "service rate, tok/s": service_rates(run, View.CLIENT, edges_s),
        "response time, s": response_times(run, edges_s),
    }
    with paper_style():
        figure = _shown_figure()
        axes = figure.subplots(len(panels), 1, sharex=True)
        for one, (label, values) in zip(axes, panels.items(), strict=True):
            for number, client in enumerate(summary["clients"]):
                name = f"{client['client']}{' (heavy)' if client['misbehaving'] else ''}"
                one.plot(
                    (edges_s[:-1] + edges_s[1:]) / 2,
                    values[number],
                    linestyle=STYLES[number % len(STYLES)],
                    label=name if number < NAMED_CLIENTS else None,
                )
            one.set(ylabel=label, ylim=(0, None))
        axes[-1].set_xlabel("time, s")
        title = "{} on {workload} {scenario}, dp {dp}".format(scheduler_name(summary), **summary)
        caption(figure, title, f"{basis(summary)}; seed {summary['seed']}", axes[0], 4)
    return figure


def _shown_figure() -> Figure:
    from matplotlib.figure import Figure

    class Shown(Figure):
        def _repr_png_(self) -> bytes:
            picture = BytesIO()
            self.savefig(picture, format="png", dpi=80)
            return picture.getvalue()

    return Shown(figsize=SIZE_IN, layout="constrained")
