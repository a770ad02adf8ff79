"""The cost of several routers for fair shares, and the benefit of exchanging charges.

    python studies routers

The script runs examples/two-routers.toml over forms, skews and intervals: about two minutes of CPU.
The script writes results/tables/routers.csv and plots/routers.svg, which docs/studies/routers.md
shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import read_experiment, resolve
from fairbench.metrics.tables import RunResult
from fairbench.schedulers.gateway.bands import Gateway
from fairbench.sim.routers.ingresses import RouterIngresses
from fairbench.sim.run import Simulation
from fairbench_studies.kit.rows import ROOT, write_rows

CASE = ROOT / "examples/two-routers.toml"
TABLE = ROOT / "results/tables/routers.csv"
FIGURE = ROOT / "plots/routers.svg"
SKEWS = (1.0, 3.0, 10.0)
INTERVALS_S = (0.01, 0.1, 1.0, 10.0)
COLOURS = ("#0072b2", "#e69f00", "#d55e00")  # colours of Okabe and Ito
SETTLED_S, END_S = 30.0, 120.0  # both wait, and every router knows it
OUTPUT_WEIGHT = 2


Case = tuple[tuple[str, Any], ...]
"""Settings of the routers; none is one router."""


def case(**settings: Any) -> Case:
    """Return a case with these settings."""
    return tuple(settings.items())


def name_of(case: Case) -> str:
    """Return the name of a case: its form, and settings other than the skew."""
    rest = {key: value for key, value in case if key not in ("form", "skew")}
    form = dict(case).get("form", "one router")
    return " ".join([form, *(f"{key}={value:g}" for key, value in rest.items())])


class Outcome(NamedTuple):
    """The results of the two clients, as charges over weights; None without a bound."""

    share: float
    service_tok_s: float
    gap: float
    bound: float | None
    unheard: float
    ahead: float


def cases() -> Iterator[Case]:
    """Yield the cases in order of the table."""
    yield case()
    for skew in SKEWS:
        yield case(form="independent", skew=skew)
    yield case(form="sticky")
    for skew in SKEWS:
        for every_s in INTERVALS_S:
            yield exchange(skew, every_s)
    for lost in (0.5, 0.9):
        yield exchange(10.0, 0.1, lost=lost, forget_s=60.0)
    yield exchange(10.0, 0.1, lost=0.9)
    yield exchange(10.0, 0.1, repeated=0.5)
    yield exchange(10.0, 0.1, lost=0.5, repeated=0.5, delay_s=0.25, forget_s=60.0)
    for delay_s in (0.1, 1.0):
        yield exchange(10.0, 0.1, delay_s=delay_s)
    for ahead in (0.0, 1000.0):
        yield exchange(10.0, 1.0, ahead_tok_s=ahead)
    for delay_s in (0.001, 0.1):
        yield case(form="ledger", skew=10.0, delay_s=delay_s)


def exchange(skew: float, every_s: float, **settings: float) -> Case:
    """Return a case in which the routers exchange charges every ``every_s`` seconds."""
    return case(form="exchange", skew=skew, every_s=every_s, **settings)


def spec_of(case: Case) -> ExperimentSpec:
    """Return the experiment of the example with these routers."""
    settings = {f"routers.{key}": value for key, value in case}
    return resolve({} if case else {"routers": 1}, settings, read_experiment(CASE))


def outcome(case: Case) -> Outcome:
    """Simulate a case."""
    spec = spec_of(case)
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    ingress = simulation.cluster.ingress
    unheard = ahead = 0.0
    if isinstance(ingress, RouterIngresses):
        unheard = ingress.gossip.unheard.tokens if ingress.gossip is not None else 0.0
        queues = [one.queue for one in ingress.ingresses]
        ahead = max(one.ahead for one in queues if isinstance(one, Gateway))
    result = simulation.result(True, None)
    rates = [row["service_rate_tok_s"] for row in result.summary["clients"]]
    gap, most = gaps(spec, result)
    settings = dict(case)
    heard = settings.get("form") in (None, "exchange", "ledger")
    if "lost" in settings and "forget_s" not in settings:
        heard = False  # peers are forgotten at times, and nothing is proved for that case
    bound = 2 * (most + unheard + ahead) if heard else None
    return Outcome(rates[0] / sum(rates), sum(rates), gap, bound, unheard, ahead)


def gaps(spec: ExperimentSpec, result: RunResult) -> tuple[float, float]:
    """Return the drift of the clients' charges over weights, and U of the theorem.

    A prompt is charged when its request is sent, outputs when the request has ended.
    """
    table = result.requests
    column = {name: np.asarray(table[name]) for name in ("routed_s", "finish_s")}
    inputs, outputs = (np.asarray(table[f"{what}_tokens"]) for what in ("input", "output"))
    names = np.asarray(table["client"])
    times: list[NDArray[Any]] = []
    steps: list[NDArray[Any]] = []
    most = 0.0
    for sign, plan in zip((1, -1), spec.client_plans(), strict=True):
        mine = (names == plan.client) & ~np.isnan(column["routed_s"])
        sent, over = column["routed_s"][mine], column["finish_s"][mine]
        paid = OUTPUT_WEIGHT * outputs[mine] / plan.weight
        done = ~np.isnan(over)
        times += [sent, over[done]]
        steps += [sign * inputs[mine] / plan.weight, sign * paid[done]]
        ups = [(at, what) for at, what in zip(sent, paid, strict=True)]
        downs = [(at, -what) for at, what in zip(over[done], paid[done], strict=True)]
        under_way = np.cumsum([what for _, what in sorted(ups + downs)]).max()
        most = max(most, float(inputs[mine].max() / plan.weight + under_way))
    at, step = np.concatenate(times), np.concatenate(steps)
    order = np.argsort(at, kind="stable")
    at, apart = at[order], np.cumsum(step[order])
    apart = apart[(at >= SETTLED_S) & (at <= END_S)]
    return float(apart.max() - apart.min()), most


def write(found: Mapping[Case, Outcome]) -> None:
    """Write a row for each case."""
    alone = next(iter(found.values())).share
    rows = [
        {
            "routers": name_of(case),
            "skew": f"{dict(case)['skew']:g}:1" if "skew" in dict(case) else "",
            "premium's share": f"{one.share:.1%}",
            "error, points": f"{100 * abs(one.share - alone):.1f}",
            "service, tok/s": f"{one.service_tok_s:,.0f}",
            "gap, tokens": f"{one.gap:,.0f}",
            "bound": "-" if one.bound is None else f"{one.bound:,.0f}",
            "unheard": f"{one.unheard:,.0f}",
            "ahead": f"{one.ahead:,.0f}",
        }
        for case, one in found.items()
    ]
    write_rows(TABLE, rows)


def draw(found: Mapping[Case, Outcome]) -> None:
    """Draw the error of the share and the gap with its bound, over the interval."""
    alone = next(iter(found.values()))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.8))
    for skew, colour in zip(SKEWS, COLOURS, strict=True):
        curve = [found[exchange(skew, every_s)] for every_s in INTERVALS_S]
        apart = found[case(form="independent", skew=skew)]
        errors = [100 * abs(one.share - alone.share) for one in curve]
        label = f"{skew:g}:1"
        left.plot(INTERVALS_S, errors, color=colour, marker="o", label=f"exchange, {label}")
        left.axhline(
            100 * abs(apart.share - alone.share), color=colour, linestyle=":",
            label=f"independent, {label}",
        )  # fmt: skip
        right.plot(INTERVALS_S, [one.gap for one in curve], color=colour, marker="o", label=label)
        bounds = [one.bound or np.nan for one in curve]
        right.plot(INTERVALS_S, bounds, color=colour, linestyle="--", label=f"{label}, bound")
    left.set(ylabel="error of premium's share, points")
    right.set(ylabel="drift of charges over weights, tokens", yscale="log")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="interval of the exchange, s", xticks=INTERVALS_S)
        axes.set_xticklabels([f"{one:g}" for one in INTERVALS_S])
        axes.minorticks_off()
        axes.legend(fontsize=7, frameon=False, loc="center right" if axes is left else "upper left")
        axes.spines[["top", "right"]].set_visible(False)
    right.axhline(alone.gap, color="0.6", linewidth=0.8)
    at = (INTERVALS_S[-2], alone.gap)
    right.annotate("one router", at, (30, -10), textcoords="offset points", fontsize=7)
    title = "Simulated on an A100: two routers before one worker, one seed"
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.tight_layout()
    with pyplot.rc_context({"svg.hashsalt": "fairbench"}):  # reproducible bytes
        figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    """Run, write, draw."""
    found = {}
    for one in cases():
        found[one] = outcome(one)
        sys.stderr.write(f"{name_of(one)}: {found[one]}\n")
    write(found)
    draw(found)
