"""The effect of several routers on fair shares, and the benefit of exchanging charges.

    python studies routers

In two minutes of CPU time, the script runs examples/two-routers.toml with each form of exchange,
skew of load between routers, and exchange interval. The script writes results/tables/routers.csv
and plots/routers.svg, which docs/studies/routers.md shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import read_experiment, resolve
from fairbench.core import OUTPUT_PRICE
from fairbench.metrics.tables import RunResult
from fairbench.schedulers.gateway.queue import Gateway
from fairbench.sim.ingress import RouterIngresses
from fairbench_studies.kit.rows import ROOT, write_rows
from fairbench_studies.routers.cases import Case, case, exchange, is_heard, name_of, usual
from fairbench_studies.routers.runs import Panel, draw, results, simulated

CASE = ROOT / "examples/two-routers.toml"
TABLE = ROOT / "results/tables/routers.csv"
FIGURE = ROOT / "plots/routers.svg"
# The gap between charges is measured from ``SETTLED_S`` to ``END_S``, while both clients have
# waiting requests.
SETTLED_S, END_S = 30.0, 120.0


class Outcome(NamedTuple):
    """Results for two clients: the premium client's service share, and charges per weight."""

    share: float
    service_tok_s: float
    gap: float
    bound: float | None
    unheard: float
    ahead: float


def cases() -> Iterator[Case]:
    """Yield the cases (ways of sharing charges, skews and intervals) in the order of the table."""
    yield from usual()
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


def spec_of(case: Case) -> ExperimentSpec:
    """Return the experiment examples/two-routers.toml with the router settings of ``case``."""
    settings = {f"routers.{key}": value for key, value in case}
    return resolve({} if case else {"routers": 1}, settings, read_experiment(CASE))


def outcome(case: Case) -> Outcome:
    """Simulate one case (a combination of router settings), and return its results."""
    spec = spec_of(case)
    simulation, unheard = simulated(spec)
    ingress, ahead = simulation.cluster.ingress, 0.0
    if isinstance(ingress, RouterIngresses):
        queues = [one.queue for one in ingress.ingresses]
        ahead = max(one.ahead for one in queues if isinstance(one, Gateway))
    result = simulation.result(True, None)
    rates = [row["service_rate_tok_s"] for row in result.summary["clients"]]
    gap, most = gaps(spec, result)
    settings = dict(case)
    # A router that loses messages may forget its peers; then no bound on the gap is proven.
    forgets = "lost" in settings and "forget_s" not in settings
    bound = 2 * (most + unheard + ahead) if is_heard(case) and not forgets else None
    return Outcome(rates[0] / sum(rates), sum(rates), gap, bound, unheard, ahead)


def gaps(spec: ExperimentSpec, result: RunResult) -> tuple[float, float]:
    """Return the largest gap between two clients' charges, and the U of VTC's fairness theorem.

    Each client's charges are divided by the client's weight. A prompt is charged when the request
    is sent, and the output is charged when the request has ended.
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
        paid = OUTPUT_PRICE * outputs[mine] / plan.weight
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
    """Write results/tables/routers.csv, with one row for each tested setting of the routers."""
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


def picture(found: Mapping[Case, Outcome]) -> None:
    """Plot a client's share error and the drift of charges by the routers' exchange interval."""
    alone = found[case()].share
    shares = Panel("error of premium's share, points", lambda one: 100 * abs(one.share - alone))
    drift = Panel(
        "drift of charges over weights, tokens",
        lambda one: one.gap,
        bound=lambda one: one.bound,
        log=True,
    )
    title = "Two routers before one worker: error of a share, and drift of charges"
    draw(FIGURE, (title, "Simulated on an A100; one seed"), found, shares, drift)


def main() -> None:
    """Simulate examples/two-routers.toml with all ``cases``, and write the table and picture."""
    found = results(cases(), outcome)
    write(found)
    picture(found)
