"""The effect of capacity that is reserved for absent clients: a table of docs/appendix/attacks.md.

    python studies attacks-reserve            # takes about ten minutes of CPU
    python studies attacks-reserve --table    # writes the table from results/attack-reserve.csv

The script runs the known attacks, and five attacks that a search found, on the workload ``judge``.
The script writes results/attack-reserve.csv. Each run has fifteen victims, with the load per
replica that three victims have in other tables of docs/appendix/attacks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.config.parse_flags import parse_assignments
from fairbench.config.resolve import experiment
from fairbench.metrics.goodput import group_service
from fairbench.metrics.records import PLAIN
from fairbench.results.significance import t_interval
from fairbench.sim.run import simulate_tables
from fairbench.workloads.model import WorkloadSpec
from fairbench_attacks.behaviour import HONEST, KNOWN, Behaviour
from fairbench_attacks.measure import Seen, combined, harm, pair, seen_in
from fairbench_attacks.workload import Stakes, attack_workload
from fairbench_studies.attacks.defences import (
    DEFENDED,
    LIMITING,
    LIMITS,
    LOWER,
    PAGE,
    REQUESTS,
    SEEDS,
    cell,
    interval_columns,
    p95_sign,
)
from fairbench_studies.kit.rows import ROOT, Row, read_rows, write_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

TABLE = ROOT / "results/attack-reserve.csv"
# The capacity reserve for absent clients was chosen with seeds 110 to 112, so ``TABLE`` holds
# results of other seeds.
FIRST_SEED = 115
DURATION_S = 120.0
VICTIMS, TIMES_FEWER = 15, 5
STAKES = Stakes(VICTIMS, multiple=4.0 * TIMES_FEWER)
RESERVES = (0, 2, 8)
TWIN = "honest twin"
MEASURES = ("kept", "p95", "service")
SHOWN = (
    *("padding-3k", "long-decoder", "long-answer-bursts"),
    *("found 5", "found 6", "found 7", "found 8"),
)
LONG_BURSTS: Mapping[str, Any] = {"on_share": 0.1, "output_multiple": 16}
ATTACKS: Mapping[str, Behaviour] = {
    **KNOWN,
    "found 1": Behaviour(
        identities=8, padding_tokens=20_000, padding_of_victim=True, split=4, reaction="eviction"
    ),
    "found 5": Behaviour(padding_tokens=1000, split=2, **LONG_BURSTS),
    "found 6": Behaviour(identities=5, split=2, max_new_multiple=4.0, **LONG_BURSTS),
    "found 7": Behaviour(padding_tokens=20_000, **LONG_BURSTS),
    "found 8": Behaviour(
        padding_tokens=8000, padding_of_victim=True, split=2, max_new_multiple=2.0, period_s=120.0,
        **LONG_BURSTS,
    ),
}  # fmt: skip


def spec_of(reserve: int, seed: int) -> ExperimentSpec:
    """Return an experiment on four replicas that keeps capacity for ``reserve`` absent clients."""
    flags = {
        **{"scheduler": "fair-finish", "workload": "judge", "scenario": "none", "dp": 4},
        **{"duration": DURATION_S, "seed": seed, **LIMITING},
    }
    reserved = f"gateway.client_reserve={reserve}"
    return experiment(flags, parse_assignments([*LIMITS, *DEFENDED, REQUESTS, LOWER, reserved]))


def workload_of(spec: ExperimentSpec, behaviour: Behaviour) -> WorkloadSpec:
    """Return the workload in which one client attacks fifteen victims."""
    usual = spec.workload.scenario("none")
    fewer = usual.model_copy(update={"rate": usual.rate / TIMES_FEWER, "rates": {}})
    return attack_workload(
        spec.workload.model_copy(update={"scenarios": {"none": fewer}}), "none", behaviour, STAKES
    )


def seen(spec: ExperimentSpec) -> tuple[Seen, float]:
    """Return the measurements of a run, and the service of all clients without padding."""
    plans, run = spec.client_plans(), simulate_tables(spec)
    everybody = group_service(run.tables, {plan.index: PLAIN for plan in plans}, DURATION_S)
    return seen_in(plans, *run), everybody.served


def simulate() -> list[dict[str, str]]:
    """Return rows for each size of the reserve: the reserve's cost, and the harm of each attack."""
    rows: list[dict[str, str]] = []
    without: list[float] = []
    for reserve in RESERVES:
        specs = [spec_of(reserve, FIRST_SEED + n) for n in range(SEEDS)]
        twins = [seen(pair(spec, workload_of(spec, HONEST))[0]) for spec in specs]
        service = [served for _, served in twins]
        without = without or service
        costs = t_interval([now / then for now, then in zip(service, without, strict=True)])
        rows.append(_row(TWIN, reserve, {"service": costs._asdict()}))
        for name, behaviour in ATTACKS.items():
            sys.stderr.write(f"reserve {reserve}: {name}\n")
            attacks = [seen(pair(spec, workload_of(spec, behaviour))[1])[0] for spec in specs]
            harms = [harm(one, twin) for one, (twin, _) in zip(attacks, twins, strict=True)]
            rows.append(_row(name, reserve, combined(harms)))
    return rows


def _row(attack: str, reserve: int, found: Mapping[str, Any]) -> dict[str, str]:
    more = str(found.get("more", False)).lower()
    row = {"attack": attack, "reserve": str(reserve), "p95_more": more}
    for measure in MEASURES:
        row |= interval_columns(found, measure)
    return row


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the Markdown table for the block ``attacks/reserve`` of docs/appendix/attacks.md."""
    heads = (f"P95, {f'a reserve of {n}' if n else 'no reserve'}" for n in RESERVES)
    body = []
    for name in SHOWN:
        found = (row for row in rows if row["attack"] == name)
        cells = (cell(row, "p95", p95_sign(row, "p95")) for row in found)
        body.append([name if " " in name else f"`{name}`", *cells])
    return {"attacks/reserve": as_markdown(["attack", *heads], body)}


def main(*flags: str) -> None:
    """Simulate the attacks unless ``--table`` is given, and write the CSV file and the table."""
    if "--table" not in flags:
        write_rows(TABLE, simulate())
    write_tables(PAGE, tables(read_rows(TABLE)))
