"""Functions that simulate several routers, and plot results against the exchange interval."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fairbench.config import ExperimentSpec
from fairbench.sim.ingress import RouterIngresses
from fairbench.sim.run import Simulation
from fairbench_papers.style import caption, client_style, log_y, panels, paper_style, save
from fairbench_studies.routers.cases import INTERVALS_S, SKEWS, Case, case, exchange, name_of

WIDTH_IN, HEIGHT_IN = 8.0, 3.8

R = TypeVar("R")


def simulated(spec: ExperimentSpec) -> tuple[Simulation, float]:
    """Simulate an experiment; also return the largest charge (tokens) not known to a router."""
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    ingress = simulation.cluster.ingress
    if isinstance(ingress, RouterIngresses) and ingress.gossip is not None:
        return simulation, ingress.gossip.unheard.tokens
    return simulation, 0.0


def results(cases: Iterable[Case], simulate: Callable[[Case], R]) -> dict[Case, R]:
    """Simulate each case of router settings, and print the case's result immediately."""
    found = {}
    for one in cases:
        found[one] = simulate(one)
        sys.stderr.write(f"{name_of(one)}: {found[one]}\n")
    return found


class Panel(NamedTuple):
    """A panel that plots a value against the routers' exchange interval, with optional error bars.

    A dashed line shows ``bound`` or, without ``bound``, the value for independent routers.
    """

    label: str
    value: Callable[[Any], float]
    spread: Callable[[Any], float] | None = None
    bound: Callable[[Any], float | None] | None = None
    log: bool = False


def draw(path: Path, about: tuple[str, str], found: Mapping[Case, Any], *shown: Panel) -> None:
    """Draw panels with the routers' exchange interval on the x axis.

    ``about`` holds the figure's title and a text that states the source of the figure's values.
    """
    with paper_style():
        figure, (row,) = panels(1, len(shown), WIDTH_IN, HEIGHT_IN)
        for axes, (label, value, spread, bound, log) in zip(row, shown, strict=True):
            for number, skew in enumerate(SKEWS):
                style = client_style(number)
                look: dict[str, Any] = {"color": style.colour, "marker": style.marker}
                curve = [found[exchange(skew, every_s)] for every_s in INTERVALS_S]
                apart = value(found[case(form="independent", skew=skew)])
                others = [bound(one) if bound else apart for one in curve]
                arms = [spread(one) for one in curve] if spread else None
                values, label_ = [value(one) for one in curve], f"exchange, skew {skew:g}:1"
                axes.errorbar(INTERVALS_S, values, arms, capsize=2, label=label_, **look)
                axes.plot(INTERVALS_S, others, linestyle="--", markerfacecolor="white", **look)
            axes.axhline(value(found[case()]), color="0.35", linewidth=0.8)
            dashed = "bound" if bound else "independent routers"
            axes.set_title(f"dashed: {dashed}; grey: one router", fontsize=8)
            axes.set(xscale="log", xlabel="interval of the exchange, s")
            axes.set_ylabel(label, fontsize=8)
            if log:
                log_y(axes)
            elif bound:
                axes.set_ylim(bottom=0)
            axes.set_xticks(INTERVALS_S, [f"{one:g}" for one in INTERVALS_S])
            axes.minorticks_off()
        caption(figure, *about, row[0])
        save(figure, [path])
