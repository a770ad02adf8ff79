"""The limit of the DLPM paper's workloads, and how near seven schedulers come to it.

    python studies limit [SEED ...]

The script simulates, on four replicas, the runs that results/tables/limit.csv lacks, by default for
seeds 0 and 1. It prints the tables, and writes them into docs/studies/limit.md. The CSV file grows
by a line per run, so an interrupted study continues after its last line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from fairbench.config.resolve import resolve
from fairbench.metrics.limit import WORK, least_work
from fairbench.metrics.records import Programs, Requests
from fairbench.sim.run import Simulation
from fairbench_studies.kit.rows import ROOT, TABLES, Row, extend_rows, stored_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables
from fairbench_studies.limit.call_limit import least_makespan_by_calls

TABLE = TABLES / "limit.csv"
PAGE = ROOT / "docs/studies/limit.md"
SCHEDULERS = ("d2lpm", "preble", "fair-finish", "vtc", "dlpm", "lpm", "fcfs")
TWO = ("tot", "judge", "long-qa")  # workloads that have two scenarios with heavy clients
PLACES = (*((name, each) for name in TWO for each in ("s1", "s2")), ("chat", "s1"))
FAIREST = ("d2lpm", "fair-finish")  # schedulers whose service is compared with the fair limit
# Fairness has an effect if it multiplies the limit on service by less than ``WITHOUT_EFFECT``.
WITHOUT_EFFECT = 0.995
SERVICE_LIMITS = ("limit_service_tok_s", "limit_fair_service_tok_s")
DP = 4
SEEDS = (0, 1)
PURPOSES = {
    "prefill": "prompts",
    "decode": "answers",
    "recomputed": "computed again",
    "small_prefill": "small prefill",
    "small_decode": "small decode",
    "idle_waiting": "idle, others wait",
    "idle": "idle",
}
"""The purposes for which GPU time is spent, with the headings of their columns."""
IDENTITY = ("workload", "scenario", "scheduler", "seed")
BY_CALLS = "least_by_calls_s"
NUMBERS = (
    *("least_makespan_s", "limit_ratio", "limit_cause", "service_rate_tok_s"),
    *("limit_service_tok_s", "limit_fair_service_tok_s", "victim_p95_s", "victim_least_p95_s"),
    *("limit_memory_ratio", "limit_hit_rate", "cache_hit_rate", "min_share_60s"),
    *(f"time_{key}_ratio" for key in (*PURPOSES, "retracted", "unfinished")),
)


def measured(workload: str, scenario: str, scheduler: str, seed: int) -> dict[str, Any]:
    """Simulate a run, and return its table row."""
    flags = {"workload": workload, "scenario": scenario, "dp": DP, "seed": seed}
    spec = resolve({**flags, "scheduler": scheduler})
    simulation = Simulation(spec, spec.client_plans(), None)
    simulation.run()
    facts = simulation.facts()
    result = simulation.result(True, None)
    row = {name: result.summary.get(name) for name in (*IDENTITY, *NUMBERS)}
    requests = Requests.from_columns(_without_names(result.requests))
    programs = Programs.from_columns(_without_names(result.programs))
    assert facts.prices is not None
    work = least_work(requests, facts.prices)
    return {**row, BY_CALLS: least_makespan_by_calls(requests, programs, facts, work)}


def _without_names(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(column, "indices", column) for name, column in columns.items()}


def points(seeds: Sequence[int]) -> Iterator[tuple[str, str, str, int]]:
    """Yield the workload, scenario, scheduler and seed of each run."""
    for seed, place, scheduler in product(seeds, PLACES, SCHEDULERS):
        yield *place, scheduler, seed


def extend(seeds: Sequence[int]) -> None:
    """Simulate the runs that the stored table lacks, and append their rows."""
    extend_rows(TABLE, IDENTITY, points(seeds), measured)


def tables() -> dict[str, str]:
    """Return the Markdown tables of limits on service, with means over the stored seeds."""
    return {
        "limit/share": share_table(),
        "limit/service": service_table(),
        "limit/losses": loss_table(),
    }


def share_table() -> str:
    """Return a table of fractions of the limit: a row per configuration, a column per scheduler."""
    body = []
    for place, by_scheduler in _by_place().items():
        first = [one for found in by_scheduler.values() for one in found]
        shares = [_mean(by_scheduler.get(name, []), "limit_ratio") for name in SCHEDULERS]
        best = max(one for one in shares if one is not None)
        cells = ["-" if one is None else _marked(one, best) for one in shares]
        cause = "" if first[0]["limit_cause"] == WORK else "*"
        least = [_mean(first, name) for name in ("least_makespan_s", BY_CALLS)]
        seconds = ["-" if one is None else f"{one:,.0f}" for one in least]
        body.append([f"{place}{cause}", *seconds, *cells])
    return as_markdown(["configuration", "least, s", "by calls, s", *SCHEDULERS], body)


def service_table() -> str:
    """Return two schedulers' service relative to the most service at max-min fair shares.

    The rows are the configurations in which fairness lowers the limit on service.
    """
    body = []
    for place, by_scheduler in _by_place().items():
        most, fair = (_mean(by_scheduler[FAIREST[-1]], name) for name in SERVICE_LIMITS)
        if most and fair and fair < WITHOUT_EFFECT * most:
            shares = [
                fmean(
                    float(run["service_rate_tok_s"]) / float(run[SERVICE_LIMITS[-1]])
                    for run in by_scheduler[name]
                )
                for name in FAIREST
            ]
            body.append([place, *(f"{share:.0%}" for share in (fair / most, *shares))])
    return as_markdown(["configuration", "limit at fair shares", *FAIREST], body)


def loss_table() -> str:
    """Return a table of each scheduler's GPU time by purpose.

    The table leaves out configurations whose limit depends on arrivals.
    """
    body = []
    bound = {place: found for place, found in _by_place().items() if _is_bound(found)}
    for name in SCHEDULERS:
        runs = [one for found in bound.values() for one in found.get(name, [])]
        shares = [_mean(runs, f"time_{key}_ratio") for key in PURPOSES]
        body.append([name, *(f"{share or 0.0:.1%}" for share in shares)])
    return as_markdown(["GPU time of", *PURPOSES.values()], body)


def _is_bound(found: dict[str, list[dict[str, str]]]) -> bool:
    """Return whether the necessary work sets the limit, and not the arrival of requests."""
    return all(run["limit_cause"] == WORK for runs in found.values() for run in runs)


def _by_place() -> dict[str, dict[str, list[dict[str, str]]]]:
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for row in stored_rows(TABLE):
        place = f"{row['workload']} {row['scenario']}"
        found.setdefault(place, {}).setdefault(row["scheduler"], []).append(row)
    return found


def _mean(found: Sequence[Row], name: str) -> float | None:
    """Return the mean over the rows that have a value, because rows of older runs may lack it."""
    values = [float(row[name]) for row in found if row.get(name)]
    return fmean(values) if values else None


def _marked(share: float, best: float) -> str:
    return f"**{share:.0%}**" if share == best else f"{share:.0%}"


def main(*seeds: str) -> None:
    """Simulate the missing runs, print the tables, and write them into the page."""
    try:
        extend([int(seed) for seed in seeds] or SEEDS)
    except ValueError:
        raise SystemExit(f"seeds = {' '.join(seeds)}: must be whole numbers") from None
    for table in tables().values():
        sys.stdout.write(f"{table}\n")
    write_tables(PAGE, tables())
