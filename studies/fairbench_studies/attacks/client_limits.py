"""A table for docs/appendix/attacks.md: the cost of client limits for honest clients.

    python studies client-limits            # takes about ten minutes of CPU time
    python studies client-limits NAME...    # simulates only the named rows

The table compares runs with and without client limits, with equal seeds, at two loads. Either one
of four honest clients sends four times as much as each of the other three, or all four clients send
equally much. The workload is ``judge``, unless a row names another workload. The script writes
results/client-limits.csv and the table of docs/appendix/attacks.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairbench.config import ExperimentSpec
from fairbench.config.parse_flags import parse_assignments
from fairbench.config.resolve import experiment
from fairbench.metrics.goodput import group_service
from fairbench.metrics.records import PLAIN
from fairbench.results.significance import t_interval
from fairbench.sim.run import simulate_tables
from fairbench_attacks.behaviour import HONEST
from fairbench_attacks.measure import replayed, seen_in
from fairbench_attacks.workload import HONEST as HONESTLY
from fairbench_attacks.workload import Stakes, attack_workload
from fairbench_studies.attacks.defences import (
    D2LPM_TENANTS,
    DEFENDED,
    LIMITED_SEED,
    LIMITING,
    LIMITS,
    LOWER,
    PAGE,
    REQUESTS,
    RESERVE,
    SEEDS,
    cell,
    interval_columns,
)
from fairbench_studies.kit.rows import ROOT, Row, read_rows, write_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

TABLE = ROOT / "results/client-limits.csv"
DURATION_S = 120.0
IN_REQUESTS = "in requests too"
MORE, RESERVED = "limited more", "with a reserve"
LONG_QA = "long-qa"
ROWS: Mapping[str, tuple[str, Sequence[str]]] = {
    "fcfs": ("fcfs", ()),
    "lpm": ("lpm", ()),
    "preble": ("preble", ()),
    "vtc, without tenants": ("vtc", ()),
    "dlpm, tenants": ("dlpm", D2LPM_TENANTS[1:]),
    "d2lpm, tenants": ("d2lpm", D2LPM_TENANTS),
    "fair-finish, defended": ("fair-finish", DEFENDED),
    f"d2lpm, tenants, {IN_REQUESTS}": ("d2lpm", (*D2LPM_TENANTS, REQUESTS)),
    f"fair-finish, defended, {IN_REQUESTS}": ("fair-finish", (*DEFENDED, REQUESTS)),
    f"fair-finish, defended, {MORE}": ("fair-finish", (*DEFENDED, REQUESTS, LOWER)),
    f"fair-finish, defended, {RESERVED}": ("fair-finish", (*DEFENDED, REQUESTS, LOWER, RESERVE)),
    f"fair-finish, defended, {LONG_QA}": ("fair-finish", DEFENDED),
    f"fair-finish, defended, {MORE}, {LONG_QA}": ("fair-finish", (*DEFENDED, REQUESTS, LOWER)),
    f"fair-finish, defended, {RESERVED}, {LONG_QA}": (
        "fair-finish",
        (*DEFENDED, REQUESTS, LOWER, RESERVE),
    ),
}
SHOWN = (
    *("fcfs", "d2lpm, tenants", "fair-finish, defended"),
    *(f"fair-finish, defended, {how}" for how in (IN_REQUESTS, RESERVED)),
    f"fair-finish, defended, {RESERVED}, {LONG_QA}",
)
COLUMNS = {
    "service": "service of all, honest twin at 4x",
    "programs": "finished programs of all",
    "victims": "victims' service",
    "p95": "their P95",
    "alike": "service of all, four equal clients",
}


class Served(NamedTuple):
    """The results of a run: throughput of all clients, and P95 latency of well-behaved clients.

    If ``more`` is True, ``p95_s`` is only a lower bound.
    """

    service: float
    programs: int
    victims: float
    p95_s: float | None
    more: bool


def spec_of(name: str, limited: bool, seed: int) -> ExperimentSpec:
    """Return a table row's experiment, with client limits (``limited``) or without a gateway."""
    scheduler, settings = ROWS[name]
    workload = LONG_QA if LONG_QA in name else "judge"
    flags = {
        **{"scheduler": scheduler, "workload": workload, "scenario": "none", "dp": 2},
        **{"duration": DURATION_S, "seed": seed},
    }
    if limited:
        flags, settings = flags | LIMITING, (*LIMITS, *settings)
    else:
        settings = [one for one in settings if not one.startswith("gateway.")]
    spec = experiment(flags, parse_assignments(settings))
    return spec.model_copy(update={"max_drain_s": DURATION_S})


def served(spec: ExperimentSpec, multiple: float) -> Served:
    """Simulate four clients, of which one sends ``multiple`` times the load of any other."""
    workload = attack_workload(spec.workload, "none", HONEST, Stakes(multiple=multiple))
    one = replayed(spec, workload, HONESTLY)
    plans, run = one.client_plans(), simulate_tables(one)
    everybody = group_service(run.tables, {plan.index: PLAIN for plan in plans}, DURATION_S)
    seen = seen_in(plans, *run)
    return Served(everybody.served, everybody.finished, seen.victims, seen.p95_s, seen.more)


def costs(name: str, seed: int) -> dict[str, float | None]:
    """Return results with client limits divided by results without limits, for one seed."""
    without, limited = (spec_of(name, on, seed) for on in (False, True))
    before, after = served(without, 4.0), served(limited, 4.0)
    p95 = None
    if after.p95_s and before.p95_s and not after.more:
        p95 = after.p95_s / before.p95_s
    return {
        "service": after.service / before.service,
        "programs": after.programs / before.programs,
        "victims": after.victims / before.victims,
        "p95": p95,
        "alike": served(limited, 1.0).service / served(without, 1.0).service,
        "at_most": before.more,
    }


def simulate(names: Sequence[str]) -> list[dict[str, str]]:
    """Return all table rows; simulate only the rows in ``names`` again."""
    known = {row["scheduler"]: row for row in read_rows(TABLE)}
    rows = []
    for name in ROWS:
        if name not in names:
            rows.append(known[name])
            continue
        sys.stderr.write(f"{name}\n")
        runs = [costs(name, LIMITED_SEED + n) for n in range(SEEDS)]
        row = {"scheduler": name, "p95_at_most": str(any(run["at_most"] for run in runs)).lower()}
        for column in COLUMNS:
            values = [run[column] for run in runs]
            some = [value for value in values if value is not None]
            found = t_interval(some) if len(some) == len(values) else None
            row |= interval_columns({column: found and found._asdict()}, column)
        rows.append(row)
    return rows


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the Markdown table for the block ``attacks/limits`` of docs/appendix/attacks.md."""
    body = []
    for row in (row for row in rows if row["scheduler"] in SHOWN):
        signs = {"p95": "<" if row["p95_at_most"] == "true" else ""}
        cells = (cell(row, column, signs.get(column, "")) for column in COLUMNS)
        body.append([row["scheduler"], *cells])
    return {"attacks/limits": as_markdown(["scheduler", *COLUMNS.values()], body)}


def main(*names: str) -> None:
    """Simulate the rows in ``names`` or all rows, and write the CSV file and the table."""
    rows = simulate(names or list(ROWS))
    write_rows(TABLE, rows)
    write_tables(PAGE, tables(rows))
