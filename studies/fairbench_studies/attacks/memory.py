"""Attacks on KV memory under each eviction policy: the tables of docs/studies/memory-attacks.md.

    python studies memory-attacks            # takes about two minutes of CPU
    python studies memory-attacks --table    # writes the tables from results/memory-attacks.csv

The script writes results/memory-attacks.csv, with one row per run, and the Markdown tables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from fairbench.config import ExperimentSpec
from fairbench.config.parse_flags import parse_assignments
from fairbench.config.resolve import experiment
from fairbench.results.significance import t_interval
from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench.sim.run import simulate_tables
from fairbench_attacks.behaviour import HONEST, Behaviour
from fairbench_attacks.measure import pair, seen_in
from fairbench_attacks.workload import Stakes, attack_workload
from fairbench_studies.kit.rows import ROOT, Row, read_rows, write_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables

PAGE = ROOT / "docs/studies/memory-attacks.md"
TABLE = ROOT / "results/memory-attacks.csv"
# The loads of this study were chosen with seed 100, so the table uses seeds from 200.
FIRST_SEED, SEEDS = 200, 5
DURATION_S = 3600.0
NONE = "none"
ATTACKS: Mapping[str, Behaviour] = {
    NONE: HONEST,
    "scan": Behaviour(padding_tokens=8000, padding_fresh=True),
    "pin": Behaviour(padding_tokens=8000, padding_fresh=True, keep_alive=4),
}
WORKLOADS: Mapping[str, tuple[float, Sequence[str]]] = {
    "long-qa": (0.0042, ("long-qa.document_tokens=5000", "long-qa.gap_mean_s=60")),
    "tool-use": (0.05, ()),
}
"""The victims' arrival rate (programs/s per client) and the settings of each workload."""


def spec_of(workload: str, eviction: str, seed: int) -> ExperimentSpec:
    """Return the experiment of a workload, with a load below saturation."""
    rate, settings = WORKLOADS[workload]
    flags = {
        **{"scheduler": "vtc", "workload": workload, "scenario": "none", "dp": 1},
        **{"duration": DURATION_S, "seed": seed, "request_rate": rate, "eviction": eviction},
    }
    return experiment(flags, parse_assignments(list(settings)))


def run(workload: str, eviction: str, attack: str, seed: int) -> dict[str, str]:
    """Simulate an attack, and return the table row of the run."""
    spec = spec_of(workload, eviction, seed)
    made = attack_workload(spec.workload, "none", ATTACKS[attack], Stakes())
    honest, attacked = pair(spec, made)
    one = honest if attack == NONE else attacked
    seen = seen_in(one.client_plans(), *simulate_tables(one))
    assert seen.hits is not None
    assert seen.p95_s is not None
    return {
        **{"workload": workload, "eviction": eviction, "attack": attack, "seed": str(seed)},
        **{"hits": f"{seen.hits:.4f}", "p95_s": f"{seen.p95_s:.3f}"},
        **{"p95_more": str(seen.more).lower(), "kept": f"{seen.victims:.4f}"},
    }


def simulate() -> Iterator[dict[str, str]]:
    """Run all simulations, and yield a table row for each run."""
    for workload in WORKLOADS:
        for eviction in EVICTIONS:
            sys.stderr.write(f"{workload}, {eviction}\n")
            for attack in ATTACKS:
                for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
                    yield run(workload, eviction, attack, seed)


def table(rows: Sequence[Row], workload: str) -> str:
    """Return the table of attacks on the memory in a workload, with a row per eviction policy."""
    header = ["eviction", "hits, no attack, %", "lost to scan, points", "lost to pinning, points"]
    header += ["P95, no attack, s", "P95, scan, s", "P95, pinning, s"]
    cells = []
    for eviction in EVICTIONS:
        own = [row for row in rows if (row["workload"], row["eviction"]) == (workload, eviction)]
        by_attack = {name: [row for row in own if row["attack"] == name] for name in ATTACKS}
        hits = {
            name: [100 * float(row["hits"]) for row in some] for name, some in by_attack.items()
        }
        lost = [_lost(hits[NONE], hits[name]) for name in ("scan", "pin")]
        p95 = [_p95(some) for some in by_attack.values()]
        cells.append([eviction, f"{fmean(hits[NONE]):.1f}", *lost, *p95])
    return as_markdown(header, cells)


def _lost(before: Sequence[float], after: Sequence[float]) -> str:
    found = t_interval([one - other for one, other in zip(before, after, strict=True)])
    assert found.high is not None
    half = f"{found.high - found.mean:.1f}"
    return f"{found.mean:.1f}" + (f" ± {half}" if half != "0.0" else "")


def _p95(rows: Sequence[Row]) -> str:
    sign = "> " if any(row["p95_more"] == "true" for row in rows) else ""
    return f"{sign}{fmean(float(row['p95_s']) for row in rows):.2f}"


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """Return the documentation page's tables, keyed by the names of the blocks in the page."""
    return {f"memory-attacks/{workload}": table(rows, workload) for workload in WORKLOADS}


def main(*flags: str) -> None:
    """Simulate the attacks unless ``--table`` is given, and write the CSV file and the tables."""
    if "--table" not in flags:
        write_rows(TABLE, list(simulate()))
    write_tables(PAGE, tables(read_rows(TABLE)))
