"""A comparison of eviction policies, with and without fair shares: docs/reference/memory.md.

    python studies memory-share                          # writes the table of the stored runs
    python studies memory-share WORKLOAD,... SEED ...    # simulates; needs FAIRBENCH_DATA

The script appends a row to results/memory-share.csv as soon as a run has ended, and writes
results/tables/memory-share.csv and plots/memory-share.svg.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from fairbench_studies.kit.rows import ROOT, Row, extend_rows, read_rows
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.table_text import plus_minus
from fairbench_studies.memory.picture import Point, draw

RUNS = ROOT / "results/memory-share.csv"
WORKLOADS = ("sessions", "long-qa", "judge")
SCENARIOS = ("s1", "s2")
SHARE = "max-min, memory.share"
POLICIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "lru": ("lru", {}),
    "quota": ("quota", {}),
    "quota-lending": ("quota-lending", {}),
    "max-min": ("max-min", {}),
    SHARE: ("max-min", {"memory.share": True}),
}
"""The eviction policy and the settings for each row of the table."""
# target hit rate of a well-behaved client, as a fraction of its hit rate when it runs alone on 1/n
# of the KV pool, where n is the number of clients
GOAL = 0.9
NUMBERS = (
    *("kept", "service_tok_s", "hit_rate", "victim_p95_s"),
    *("allocations", "beyond", "lost_tokens"),
)
KEY = ("workload", "scenario", "policy", "seed")


def memory_row(flags: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Simulate a run, and return its latency, service, hit rates and pinned memory."""
    summary = simulate(resolve(flags, settings)).summary
    clients = [one for one in summary["clients"] if not one["misbehaving"]]
    audit = summary.get("pinned_beyond_share", {})
    return {
        "kept": _kept(clients),
        "heavy_kept": _kept([one for one in summary["clients"] if one["misbehaving"]]),
        "service_tok_s": float(summary["service_rate_tok_s"]),
        "hit_rate": float(summary["cache_hit_rate"]),
        "victim_hit_rate": fmean(one["cache_hit_rate"] for one in clients),
        "victim_p95_s": summary["victim_p95_s"],
        "victim_session_p95_s": summary.get("victim_session_p95_s"),
        "allocations": audit.get("allocations", ""),
        "beyond": audit.get("beyond", ""),
        "lost_tokens": audit.get("lost_tokens", ""),
    }


def _kept(clients: Sequence[Mapping[str, Any]]) -> str:
    parts = [one["cache_sharing_incentive"] for one in clients]
    return " ".join("" if one is None else f"{one:.4f}" for one in parts)


def run(workload: str, scenario: str, policy: str, seed: int) -> dict[str, Any]:
    """Simulate a run under ``vtc`` on two replicas, and return its table row."""
    eviction, settings = POLICIES[policy]
    names = {"workload": workload, "scenario": scenario, "seed": seed}
    row = memory_row({**names, "scheduler": "vtc", "dp": 2, "eviction": eviction}, settings)
    identity = dict(zip(KEY, (workload, scenario, policy, seed), strict=True))
    return identity | {name: row[name] for name in NUMBERS}


def kept(rows: Sequence[Row]) -> list[float]:
    """Return each well-behaved client's hit rate divided by the client's hit rate when alone."""
    return [float(one) for row in rows for one in row["kept"].split()]


def _groups(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, list[Row]]]]:
    """Yield each workload's runs by eviction policy, for the seeds that all policies have."""
    for workload, scenario in product(WORKLOADS, SCENARIOS):
        of = [row for row in rows if (row["workload"], row["scenario"]) == (workload, scenario)]
        known = Counter(row["seed"] for row in of)
        of = sorted(
            (row for row in of if known[row["seed"]] == len(POLICIES)),
            key=lambda row: int(row["seed"]),
        )
        if of:
            by_policy = {name: [row for row in of if row["policy"] == name] for name in POLICIES}
            yield f"{workload} {scenario}", by_policy


def _changes(rows: Sequence[Row], lru: Sequence[Row]) -> list[float]:
    pairs = zip(rows, lru, strict=True)
    return [100 * (float(a["service_tok_s"]) / float(b["service_tok_s"]) - 1) for a, b in pairs]


def table(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield a row per workload, scenario and eviction policy."""
    for workload, groups in _groups(rows):
        for policy, mine in groups.items():
            parts, change = kept(mine), _changes(mine, groups["lru"])
            audited = [row for row in mine if row["beyond"]]
            beyond, every = (
                sum(int(row[name]) for row in audited) for name in ("beyond", "allocations")
            )
            yield {
                "workload": workload,
                "eviction": policy,
                "client-runs that keep 90%": f"{sum(one >= GOAL for one in parts)} of {len(parts)}",
                "lowest kept, %": f"{100 * min(parts):.0f}",
                "throughput against lru, %": "-" if policy == "lru" else plus_minus(change, 1),
                "assumption broken, % of allocations": f"{100 * beyond / every:.0f}"
                if every
                else "-",
                "seeds": str(len(mine)),
            }


def points(rows: Sequence[Row]) -> dict[str, dict[str, Point]]:
    """Return the plot points of each workload and eviction policy."""
    return {
        workload: {
            policy: Point([100 * min(kept([row])) for row in mine], _changes(mine, groups["lru"]))
            for policy, mine in groups.items()
        }
        for workload, groups in _groups(rows)
    }


def main(workloads: str = "", *seeds: str) -> None:
    """Simulate the missing runs, write the table of eviction policies, and draw the picture."""
    names = workloads.split(",") if workloads else []
    cells = product(map(int, seeds), names, SCENARIOS, POLICIES)
    extend_rows(RUNS, KEY, ((*cell, seed) for seed, *cell in cells), run)
    rows = read_rows(RUNS)
    write("memory-share", [*table(rows)])
    draw(points(rows), 100 * GOAL)
