"""The cost of several D2LPM routers: locality, fairness, and drift of charges.

    python studies routers-d2lpm

The script simulates for about four minutes of CPU. The script writes
results/tables/router-scaling.csv, results/tables/routers-d2lpm.csv and plots/routers-d2lpm.svg,
which docs/studies/routers.md shows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray

from fairbench.config.resolve import resolve
from fairbench.metrics.tables import RunResult
from fairbench.sim.routers.ingresses import RouterIngresses
from fairbench.sim.run import Simulation
from fairbench_studies.kit.rows import ROOT, write_rows
from fairbench_studies.routers.table import Case, case, exchange

TABLES = ROOT / "results/tables"
FIGURE = ROOT / "plots/routers-d2lpm.svg"
COLOURS = ("#0072b2", "#e69f00", "#d55e00")  # colours of Okabe and Ito
OUTPUT_WEIGHT = 2

QUANTUM = 40_000  # the default of d2lpm

# Numbers of routers and of workers, and the form of sharing.
SCALE = {"duration_s": 20.0, "scenario": "s1", "scheduler": "d2lpm"}
FLEETS = (("tot", 16, (2, 4, 8)), ("chat", 16, (2, 4, 8)), ("tot", 64, (8,)))
DIVIDED = "independent, 1/N quantum each"
GATHERED = "exchange, each client at one"
FORMS = ("independent", DIVIDED, "sticky", "exchange", GATHERED)

# Drift: one worker's charges of a client against another's.
REPLICAS = 4
DRIFT: Mapping[str, Any] = {
    "workload": "tot", "scenario": "s1", "scheduler": "d2lpm", "dp": REPLICAS, "duration_s": 60.0,
}  # fmt: skip
SKEWS = (1.0, 3.0, 10.0)
INTERVALS_S = (0.01, 0.1, 1.0, 10.0)


SEEDS = range(5)


class Drift(NamedTuple):
    """The results of well-behaved clients and of charges at workers.

    ``shares`` is by seed. The other values are means over seeds, except that the drift and
    unreceived charges are maxima and the bound is the minimum.
    """

    shares: tuple[float, ...]
    service_tok_s: float
    hit_rate: float
    apart: float
    bound: float | None
    unheard: float

    def changes(self, alone: Drift) -> NDArray[Any]:
        """Return the change of the share against one router, in points by seed."""
        return np.asarray(100 * (np.array(self.shares) - np.array(alone.shares)))


def simulated(flags: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[RunResult, float]:
    """Return a result, and the largest charge at a worker that a router did not know."""
    spec = resolve(dict(flags), dict(settings))
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    ingress, unheard = simulation.cluster.ingress, 0.0
    if isinstance(ingress, RouterIngresses) and ingress.gossip is not None:
        unheard = ingress.gossip.unheard.tokens
    return simulation.result(True, None), unheard


def scaling() -> Iterator[list[str]]:
    """Yield a row for each fleet, number of routers, and form."""
    for workload, dp, numbers in FLEETS:
        for number, form in [(1, ""), *((n, form) for n in numbers for form in FORMS)]:
            flags = SCALE | {"workload": workload, "dp": dp, "routers": number}
            settings: dict[str, Any] = {"routers.form": form.partition(",")[0]} if form else {}
            if form == DIVIDED:
                settings["d2lpm.worker_quantum"] = QUANTUM // number
            if form == GATHERED:
                settings["routers.skew"] = 1e9
            found = simulated(flags, settings)[0].summary
            yield [
                f"`{workload}`", f"{dp}", f"{number}", form or "-",
                f"{found['cache_hit_rate']:.3f}", f"{found['service_rate_tok_s']:,.0f}",
                f"{found['jain_index_actual']:.3f}", f"{found['min_entitlement_ratio']:.3f}",
                f"{found['victim_p99_s']:.1f}",
            ]  # fmt: skip


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
        yield exchange(10.0, 0.1, lost=lost)
    yield exchange(10.0, 0.1, repeated=0.5)
    for delay_s in (0.1, 1.0, 10.0):
        yield exchange(10.0, 0.1, delay_s=delay_s)
    yield exchange(10.0, 0.1, lost=0.5, repeated=0.5, delay_s=1.0)
    yield case(form="ledger", skew=10.0)


def drift(one: Case) -> Drift:
    """Simulate a case over all seeds."""
    found = [_drift(one, seed) for seed in SEEDS]
    of = {name: [getattr(each, name) for each in found] for name in Drift._fields}
    return Drift(
        shares=tuple(share for each in found for share in each.shares),
        service_tok_s=float(np.mean(of["service_tok_s"])),
        hit_rate=float(np.mean(of["hit_rate"])),
        apart=max(of["apart"]),
        bound=None if None in of["bound"] else min(of["bound"]),
        unheard=max(of["unheard"]),
    )


def _drift(one: Case, seed: int) -> Drift:
    settings = {f"routers.{key}": value for key, value in one}
    result, unheard = simulated({**DRIFT, "routers": 2 if one else 1, "seed": seed}, settings)
    summary = result.summary
    rates = [row["service_rate_tok_s"] for row in summary["clients"]]
    behaved = [row["service_rate_tok_s"] for row in summary["clients"] if not row["misbehaving"]]
    heard = dict(one).get("form") in (None, "exchange", "ledger")
    apart, most = charges(result)
    return Drift(
        (sum(behaved) / sum(rates),),
        sum(rates),
        summary["cache_hit_rate"],
        apart,
        QUANTUM + most + unheard if heard else None,
        unheard,
    )


def charges(result: RunResult) -> tuple[float, float]:
    """Return the largest difference of a client's charges between workers, and its bound."""
    table = result.requests
    column = {key: np.asarray(table[key]) for key in ("worker", "arrival_s", "finish_s")}
    inputs = np.asarray(table["input_tokens"])
    outputs = OUTPUT_WEIGHT * np.asarray(table["output_tokens"])
    names = np.asarray(table["client"])
    apart = most = 0.0
    for client in np.unique(names):
        events: list[tuple[float, int, float]] = []
        under_way: list[tuple[float, int, float]] = []
        mine = np.flatnonzero((names == client) & (column["worker"] >= 0))
        for at in mine:
            worker, ended = int(column["worker"][at]), column["finish_s"][at]
            events.append((column["arrival_s"][at], worker, inputs[at]))
            under_way.append((column["arrival_s"][at], worker, outputs[at]))
            if not np.isnan(ended):
                events.append((ended, worker, outputs[at]))
                under_way.append((ended, worker, -outputs[at]))
        at_workers = peaks(events, difference=True)
        apart = max(apart, at_workers)
        most = max(most, inputs[mine].max() + peaks(under_way, difference=False))
    return apart, most


def peaks(events: Sequence[tuple[float, int, float]], *, difference: bool) -> float:
    """Return the largest sum by worker, or the largest difference between workers."""
    sums, peak = dict.fromkeys(range(REPLICAS), 0.0), 0.0
    for _, worker, tokens in sorted(events):
        sums[worker] += tokens
        least = min(sums.values()) if difference else 0.0
        peak = max(peak, max(sums.values()) - least)
    return peak


def name_of(one: Case) -> str:
    """Return the name of a case: its form, and settings other than the skew."""
    rest = {key: value for key, value in one if key not in ("form", "skew")}
    form = dict(one).get("form", "one router")
    return " ".join([form, *(f"{key}={value:g}" for key, value in rest.items())])


def rows_of(found: Mapping[Case, Drift]) -> Iterator[list[str]]:
    """Yield a row for each case."""
    alone = next(iter(found.values()))
    for one, outcome in found.items():
        skew = dict(one).get("skew")
        yield [
            name_of(one), "" if skew is None else f"{skew:g}:1",
            f"{np.mean(outcome.shares):.1%}", points(outcome.changes(alone)),
            f"{outcome.service_tok_s:,.0f}", f"{outcome.hit_rate:.3f}", f"{outcome.apart:,.0f}",
            "-" if outcome.bound is None else f"{outcome.bound:,.0f}", f"{outcome.unheard:,.0f}",
        ]  # fmt: skip


def points(changes: NDArray[Any]) -> str:
    """Return the mean and standard deviation as text."""
    return f"{changes.mean():+.1f} ± {changes.std(ddof=1):.1f}"


def draw(found: Mapping[Case, Drift]) -> None:
    """Draw the error of the share and the drift of charges over the interval."""
    alone = next(iter(found.values()))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.5, 3.8))
    for skew, colour in zip(SKEWS, COLOURS, strict=True):
        curve = [found[exchange(skew, every_s)] for every_s in INTERVALS_S]
        changes = [one.changes(alone) for one in curve]
        apart = found[case(form="independent", skew=skew)]
        label = f"{skew:g}:1"
        spreads = [one.std(ddof=1) for one in changes]
        left.errorbar(
            INTERVALS_S, [one.mean() for one in changes], spreads, color=colour, marker="o",
            capsize=2, label=f"exchange, {label}",
        )  # fmt: skip
        left.axhline(
            apart.changes(alone).mean(), color=colour, linestyle=":",
            label=f"independent, {label}",
        )  # fmt: skip
        right.plot(INTERVALS_S, [one.apart for one in curve], color=colour, marker="o", label=label)
        bounds = [one.bound for one in curve]
        right.plot(INTERVALS_S, bounds, color=colour, linestyle="--", label=f"{label}, bound")
    left.set(ylabel="change of the behaved clients' share, points")
    right.set(ylabel="one client's charges between workers, tokens", ylim=(0, None))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="interval of the exchange, s", xticks=INTERVALS_S)
        axes.set_xticklabels([f"{one:g}" for one in INTERVALS_S])
        axes.minorticks_off()
        axes.legend(fontsize=7, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    right.axhline(alone.apart, color="0.6", linewidth=0.8)
    figure.suptitle(
        "Simulated on an A100: tot s1 under d2lpm, two routers before four workers; five seeds",
        fontsize=9, x=0.01, ha="left",
    )  # fmt: skip
    figure.tight_layout()
    with pyplot.rc_context({"svg.hashsalt": "fairbench"}):  # reproducible bytes
        figure.savefig(FIGURE, metadata={"Date": None})


def write(name: str, head: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Write a table, and print each row as it is computed."""
    found = []
    for row in rows:
        sys.stderr.write(f"{row}\n")
        found.append(dict(zip(head, row, strict=True)))
    write_rows(TABLES / f"{name}.csv", found)


def main() -> None:
    """Run, write, draw."""
    found = {}
    for one in cases():
        found[one] = drift(one)
        sys.stderr.write(f"{name_of(one)}: {found[one]}\n")
    head = ["routers", "skew", "behaved share", "error, points", "service, tok/s", "hit rate"]
    write("routers-d2lpm", [*head, "apart, tokens", "bound", "unheard"], rows_of(found))
    draw(found)
    head = ["workload", "workers", "routers", "form", "hit rate", "service, tok/s"]
    head += ["Jain (computed)", "min. fair share of own", "victim P99, s"]
    write("router-scaling", head, scaling())
