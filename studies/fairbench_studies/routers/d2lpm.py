"""The cost of several D2LPM routers: cache locality, fairness, and drift of charges.

    python studies routers-d2lpm

The script writes results/tables/router-scaling.csv, results/tables/routers-d2lpm.csv and
plots/routers-d2lpm.svg for docs/studies/routers.md, in about four minutes of CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairbench.config.resolve import resolve
from fairbench.core import OUTPUT_PRICE
from fairbench.metrics.tables import RunResult
from fairbench_studies.kit.rows import ROOT, TABLES, write_rows
from fairbench_studies.routers.cases import Case, case, exchange, is_heard, name_of, usual
from fairbench_studies.routers.runs import Panel, draw, results, simulated

FIGURE = ROOT / "plots/routers-d2lpm.svg"
QUANTUM = 40_000  # default quantum of the scheduler d2lpm, in tokens

# The scaling table varies the number of workers, the number of routers, and the way in which
# routers share charges.
SCALE = {"duration_s": 20.0, "scenario": "s1", "scheduler": "d2lpm"}
FLEETS = (("tot", 16, (2, 4, 8)), ("chat", 16, (2, 4, 8)), ("tot", 64, (8,)))
DIVIDED = "independent, 1/N quantum each"
GATHERED = "exchange, each client at one"
FORMS = ("independent", DIVIDED, "sticky", "exchange", GATHERED)

# The drift is the largest difference between a client's charges at two workers.
REPLICAS = 4
DRIFT: Mapping[str, Any] = {
    "workload": "tot", "scenario": "s1", "scheduler": "d2lpm", "dp": REPLICAS, "duration_s": 60.0,
}  # fmt: skip
SEEDS = range(5)


class Drift(NamedTuple):
    """The results of one case: the well-behaved clients' service, and charges at workers.

    ``shares`` has the well-behaved clients' share of service for each seed. ``apart`` is the
    largest difference between a client's charges at two workers, and ``bound`` is the lowest bound
    on ``apart``. ``unheard`` is the largest charge of which a router was not informed.
    """

    shares: tuple[float, ...]
    service_tok_s: float
    hit_rate: float
    apart: float
    bound: float | None
    unheard: float

    def changes(self, alone: Drift) -> NDArray[Any]:
        """Return each seed's share minus one router's share (``alone``), in percentage points."""
        return np.asarray(100 * (np.array(self.shares) - np.array(alone.shares)))


def scaling() -> Iterator[list[str]]:
    """Yield a table row for each number of workers and routers and each way of sharing charges."""
    for workload, dp, numbers in FLEETS:
        for number, form in [(1, ""), *((n, form) for n in numbers for form in FORMS)]:
            flags = SCALE | {"workload": workload, "dp": dp, "routers": number}
            settings: dict[str, Any] = {"routers.form": form.partition(",")[0]} if form else {}
            if form == DIVIDED:
                settings["d2lpm.worker_quantum"] = QUANTUM // number
            if form == GATHERED:
                settings["routers.skew"] = 1e9
            summary = simulated(resolve(flags, settings))[0].result(True, None).summary
            yield [
                f"`{workload}`", f"{dp}", f"{number}", form or "-",
                f"{summary['cache_hit_rate']:.3f}", f"{summary['service_rate_tok_s']:,.0f}",
                f"{summary['jain_index_actual']:.3f}", f"{summary['min_entitlement_ratio']:.3f}",
                f"{summary['victim_p99_s']:.1f}",
            ]  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield the tested router settings (cases) in the order of the rows in the results table."""
    yield from usual()
    for lost in (0.5, 0.9):
        yield exchange(10.0, 0.1, lost=lost)
    yield exchange(10.0, 0.1, repeated=0.5)
    for delay_s in (0.1, 1.0, 10.0):
        yield exchange(10.0, 0.1, delay_s=delay_s)
    yield exchange(10.0, 0.1, lost=0.5, repeated=0.5, delay_s=1.0)
    yield case(form="ledger", skew=10.0)


def drift(one: Case) -> Drift:
    """Simulate a case of router settings with all seeds, and combine the seeds' results."""
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
    flags = {**DRIFT, "routers": 2 if one else 1, "seed": seed}
    simulation, unheard = simulated(resolve(flags, settings))
    result = simulation.result(True, None)
    summary = result.summary
    rates = [row["service_rate_tok_s"] for row in summary["clients"]]
    behaved = [row["service_rate_tok_s"] for row in summary["clients"] if not row["misbehaving"]]
    apart, most = charges(result)
    return Drift(
        (sum(behaved) / sum(rates),),
        sum(rates),
        summary["cache_hit_rate"],
        apart,
        QUANTUM + most + unheard if is_heard(one) else None,
        unheard,
    )


def charges(result: RunResult) -> tuple[float, float]:
    """Return the largest difference of a client's charges between workers, and a bound on it.

    The bound is the client's longest prompt plus its largest charge for unfinished outputs at a
    worker.
    """
    table = result.requests
    column = {key: np.asarray(table[key]) for key in ("worker", "arrival_s", "finish_s")}
    inputs = np.asarray(table["input_tokens"])
    outputs = OUTPUT_PRICE * np.asarray(table["output_tokens"])
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
    """Return a client's largest sum of charges at a worker, or largest gap between two workers."""
    sums, peak = dict.fromkeys(range(REPLICAS), 0.0), 0.0
    for _, worker, tokens in sorted(events):
        sums[worker] += tokens
        least = min(sums.values()) if difference else 0.0
        peak = max(peak, max(sums.values()) - least)
    return peak


def rows_of(found: Mapping[Case, Drift]) -> Iterator[list[str]]:
    """Yield a table row for each case (a way to share charges, with its exchange interval)."""
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
    """Return the mean and standard deviation of changes, in percentage points, as text."""
    return f"{changes.mean():+.1f} ± {changes.std(ddof=1):.1f}"


def picture(found: Mapping[Case, Drift]) -> None:
    """Plot ``Drift.changes`` and ``Drift.apart`` against the routers' exchange interval."""
    alone = found[case()]
    shares = Panel(
        "change of the behaved clients' share, points",
        lambda one: one.changes(alone).mean(),
        lambda one: one.changes(alone).std(ddof=1),
    )
    label = "one client's charges between workers, tokens"
    drift = Panel(label, lambda one: one.apart, bound=lambda one: one.bound)
    title = "Two D²LPM routers before four workers: change of a share, and drift of charges"
    draw(FIGURE, (title, "Simulated on an A100: tot s1; five seeds"), found, shares, drift)


def write(name: str, head: Sequence[str], rows: Iterator[list[str]]) -> None:
    """Write a CSV table, and print each row as soon as it is computed."""
    found = []
    for row in rows:
        sys.stderr.write(f"{row}\n")
        found.append(dict(zip(head, row, strict=True)))
    write_rows(TABLES / f"{name}.csv", found)


def main() -> None:
    """Simulate all cases of D2LPM routers, write the tables, and draw the picture."""
    found = results(cases(), drift)
    head = ["routers", "skew", "behaved share", "error, points", "service, tok/s", "hit rate"]
    write("routers-d2lpm", [*head, "apart, tokens", "bound", "unheard"], rows_of(found))
    picture(found)
    head = ["workload", "workers", "routers", "form", "hit rate", "service, tok/s"]
    head += ["Jain (computed)", "min. fair share of own", "well-behaved P99, s"]
    write("router-scaling", head, scaling())
