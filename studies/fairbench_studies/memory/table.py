"""Fair shares of KV memory compared with eviction policies: a table of docs/reference/memory.md.

    python studies memory-share              # the table again, from results/memory-share.csv
    python studies memory-share SEED ...     # missing runs; needs FAIRBENCH_DATA

The script writes results/memory-share.csv, with a row per run and as soon as the run has ended, and
results/tables/memory-share.csv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.results.intervals import t_interval
from fairbench.sim.run import simulate
from fairbench_studies.kit.rows import ROOT, Row, extend_rows, read_rows
from fairbench_studies.kit.table_store import write

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
"""The eviction policy and the settings of each row of the table."""
# A well-behaved client should keep this fraction of the hit rate that it has alone on 1/n of the
# pool.
GOAL = 0.9
KEY = ("workload", "scenario", "policy", "seed")


def run(workload: str, scenario: str, policy: str, seed: int) -> dict[str, Any]:
    """Simulate two replicas under ``vtc`` and return the row of the run."""
    eviction, settings = POLICIES[policy]
    flags = {
        **{"workload": workload, "scenario": scenario, "scheduler": "vtc", "dp": 2},
        **{"eviction": eviction, "seed": seed},
    }
    summary = simulate(resolve(flags, settings)).summary
    clients = [one for one in summary["clients"] if not one["misbehaving"]]
    kept = [one["cache_sharing_incentive"] for one in clients]
    audit = summary.get("pinned_beyond_share", {})
    return {
        **dict(zip(KEY, (workload, scenario, policy, seed), strict=True)),
        "kept": " ".join("" if one is None else f"{one:.4f}" for one in kept),
        "service_tok_s": float(summary["service_rate_tok_s"]),
        "hit_rate": float(summary["cache_hit_rate"]),
        "victim_p95_s": summary["victim_p95_s"],
        "allocations": audit.get("allocations", ""),
        "beyond": audit.get("beyond", ""),
        "lost_tokens": audit.get("lost_tokens", ""),
    }


def complete(seeds: Sequence[int]) -> None:
    """Simulate the runs that are missing in the file, and store each run immediately."""
    cells = product(seeds, WORKLOADS, SCENARIOS, POLICIES)
    extend_rows(RUNS, KEY, ((*cell, seed) for seed, *cell in cells), run)


def kept(rows: Sequence[Row]) -> list[float]:
    """Return each well-behaved client's hit rate relative to its hit rate alone, in all runs."""
    return [float(one) for row in rows for one in row["kept"].split()]


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{100 * fmean(values):+.1f}"
    found = t_interval(values)
    assert found.high is not None, "two values or more have an interval"
    return f"{100 * found.mean:+.1f} ± {100 * (found.high - found.mean):.1f}"


def table(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield a row per workload, scenario and policy, over the seeds that all policies have.

    Throughput is relative to LRU with the same seed.
    """
    for workload, scenario in product(WORKLOADS, SCENARIOS):
        of = [row for row in rows if (row["workload"], row["scenario"]) == (workload, scenario)]
        known = Counter(row["seed"] for row in of)
        of = [row for row in of if known[row["seed"]] == len(POLICIES)]
        lru = {row["seed"]: float(row["service_tok_s"]) for row in of if row["policy"] == "lru"}
        for policy in POLICIES:
            mine = [row for row in of if row["policy"] == policy]
            if not mine:
                continue
            parts = kept(mine)
            change = [float(row["service_tok_s"]) / lru[row["seed"]] - 1 for row in mine]
            audits = [
                (int(row["beyond"]), int(row["allocations"])) for row in mine if row["beyond"]
            ]
            beyond, all_of = (
                (sum(column) for column in zip(*audits, strict=True)) if audits else (0, 0)
            )
            yield {
                "workload": f"{workload} {scenario}",
                "eviction": policy,
                "client-runs that keep 90%": f"{sum(one >= GOAL for one in parts)} of {len(parts)}",
                "lowest kept, %": f"{100 * min(parts):.0f}",
                "throughput against lru, %": "-" if policy == "lru" else _interval(change),
                "assumption broken, % of allocations": f"{100 * beyond / all_of:.0f}"
                if all_of
                else "-",
                "seeds": str(len(mine)),
            }


def main(*seeds: str) -> None:
    """Make the missing runs of the seeds, and write the table."""
    complete([int(seed) for seed in seeds])
    write("memory-share", [*table(read_rows(RUNS))])
