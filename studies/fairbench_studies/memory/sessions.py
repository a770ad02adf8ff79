"""Max-min eviction compared with LRU for agent sessions: the table of docs/studies/sessions.md.

    python studies sessions              # writes the table from results/sessions.csv
    python studies sessions SEED ...     # simulates missing runs; needs FAIRBENCH_DATA

The script appends a row to results/sessions.csv as soon as a run has ended, and writes
results/tables/sessions.csv.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from fairbench_studies.kit.rows import ROOT, Row, extend_rows, read_rows
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.table_text import differs, plus_minus
from fairbench_studies.memory.table import SCENARIOS, kept, memory_row

RUNS = ROOT / "results/sessions.csv"
SCHEDULERS = ("fcfs", "lpm", "vtc", "dlpm", "d2lpm", "preble", "fair-finish")
EVICTIONS = ("lru", "max-min")
P95, HITS = "victim_session_p95_s", "victim_hit_rate"
KEY = ("scenario", "scheduler", "eviction", "seed")


def run(scenario: str, scheduler: str, eviction: str, seed: int) -> dict[str, Any]:
    """Simulate a run on two replicas, and return its table row."""
    names = dict(zip(KEY, (scenario, scheduler, eviction, seed), strict=True))
    return names | memory_row({"workload": "sessions", "dp": 2, **names}, {})


def table(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield a row per scenario and scheduler: how max-min eviction changes latency and hit rate."""
    for scenario, scheduler in product(SCENARIOS, SCHEDULERS):
        lru, fair = (_chosen(rows, [scenario, scheduler, eviction]) for eviction in EVICTIONS)
        latency, hits = ([float(row[name]) for row in lru] for name in (P95, HITS))
        yield {
            "scenario": scenario,
            "scheduler": scheduler,
            "P95 under LRU, s": f"{fmean(latency):,.0f}",
            "P95 change, s": _marked(_changes(lru, fair, P95), 0),
            "hit rate under LRU, %": f"{100 * fmean(hits):.1f}",
            "hit rate change, points": _marked([100 * one for one in _changes(lru, fair, HITS)], 1),
            "client-runs below alone": ", ".join(_losers(mine) for mine in (lru, fair)),
        }


def _chosen(rows: Sequence[Row], wanted: Sequence[str]) -> list[Row]:
    chosen = [row for row in rows if [row[name] for name in KEY[:3]] == wanted]
    return sorted(chosen, key=lambda row: int(row["seed"]))


def _changes(before: Sequence[Row], after: Sequence[Row], name: str) -> list[float]:
    pairs = zip(before, after, strict=True)
    return [float(new[name]) - float(old[name]) for old, new in pairs]


def _marked(changes: Sequence[float], digits: int) -> str:
    text = plus_minus(changes, digits)
    return f"**{text}**" if differs(changes) else text


def _losers(rows: Sequence[Row]) -> str:
    """Return how often a client's hit rate in a run was below the client's hit rate when alone."""
    return str(sum(one < 1 for one in kept(rows)))


def main(*seeds: str) -> None:
    """Simulate the missing runs of the seeds, and write the table of sessions."""
    points = product(map(int, seeds), SCENARIOS, SCHEDULERS, EVICTIONS)
    extend_rows(RUNS, KEY, ((*cell, seed) for seed, *cell in points), run)
    write("sessions", [*table(read_rows(RUNS))])
