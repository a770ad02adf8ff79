"""The least possible makespans of the DLPM paper's workloads, and those of seven schedulers.

    python studies limit [SEED ...]

The script simulates, on four replicas, the runs that results/tables/limit.csv lacks, by default for
seeds 0 and 1. The script prints the tables, and writes the tables into docs/studies/limit.md. The
CSV file grows by a line per run, so an interrupted study continues after its last line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.config.resolve import resolve
from fairbench.metrics.limit import NEARLY, least_work
from fairbench.metrics.records import Programs, Requests
from fairbench.sim.run import Simulation
from fairbench_studies.kit.rows import ROOT, TABLES, Row, extend_rows, read_rows, stored_rows
from fairbench_studies.kit.table_text import as_markdown, write_tables
from fairbench_studies.limit.call_limit import least_makespan_by_calls

TABLE = TABLES / "limit.csv"
PAGE = ROOT / "docs/studies/limit.md"
SCHEDULERS = ("d2lpm", "preble", "fair-finish", "vtc", "dlpm", "lpm", "fcfs")
TWO = ("tot", "judge", "long-qa")  # workloads that have two scenarios with heavy clients
ONE = ("chat", "mix", "production")  # workloads that the study simulates in one scenario
PLACES = (
    *((name, each) for name in TWO for each in ("s1", "s2")),
    *((name, "s1") for name in ONE),
)
FAIREST = ("d2lpm", "fair-finish")  # schedulers compared with the limit at fair shares
OURS = FAIREST[-1]
FRONTIER = ROOT / "results/frontier.csv"
# Fair shares without effect lower the highest possible service by at most 0.5%.
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
"""Categories of GPU time, each with its column heading."""
IDENTITY = ("workload", "scenario", "scheduler", "seed")
BY_CALLS = "least_by_calls_s"
NUMBERS = (
    *("least_makespan_s", "least_gpu_s", "limit_ratio", "limit_cause", "service_rate_tok_s"),
    *("limit_service_tok_s", "limit_fair_service_tok_s", "victim_p95_s", "victim_least_p95_s"),
    *("limit_memory_ratio", "limit_hit_rate", "cache_hit_rate"),
    *("min_share_60s", "min_entitlement_ratio"),
    *(f"time_{key}_ratio" for key in (*PURPOSES, "retracted", "unfinished")),
)


def measured(
    workload: str,
    scenario: str,
    scheduler: str,
    seed: int,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Simulate a run, and return its table row."""
    flags = {"workload": workload, "scenario": scenario, "dp": DP, "seed": seed}
    spec = resolve({**flags, "scheduler": scheduler}, settings)
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
        "limit/both": both_table(),
        "limit/service": service_table(),
        "limit/losses": loss_table(),
    }


def share_table() -> str:
    """Return a table of the least possible makespan as a fraction of each scheduler's makespan."""
    body = []
    for place, by_scheduler in _by_place().items():
        shares = [fmean(_share(run) for run in by_scheduler[name]) for name in SCHEDULERS]
        runs = [run for found in by_scheduler.values() for run in found]
        least_s = fmean(float(run[BY_CALLS]) for run in runs)
        cause = "" if _is_bound(by_scheduler) else "*"
        cells = [_marked(one, max(shares)) for one in shares]
        body.append([f"{place}{cause}", f"{least_s:,.0f}", *cells])
    return as_markdown(["configuration", "least, s", *SCHEDULERS], body)


def _share(run: Row) -> float:
    """Return the lower bound ``least_by_calls_s`` divided by the time at which the run ended."""
    ended_s = float(run["least_makespan_s"]) / float(run["limit_ratio"])
    return float(run[BY_CALLS]) / ended_s


class Both(NamedTuple):
    """Service relative to its upper bound, and the worst minute's minimum fair share."""

    limit: float
    worst_minute: float

    def __str__(self) -> str:
        return f"{self.limit:.0%} / {self.worst_minute:.0%}"


def both_measures() -> dict[str, dict[tuple[str, str], Both]]:
    """Return service and minimum fair shares by configuration, then by form and scheduler pair."""
    rows: dict[str, dict[tuple[str, str], list[Row]]] = {}
    for row in read_rows(FRONTIER):
        if row["part"] == "test":
            place = rows.setdefault(f"{row['workload']} {row['scenario']}", {})
            place.setdefault((row["form"], row["pair"]), []).append(row)
    return {
        place: {key: Both(*(_mean(one, name) for name in Both._fields)) for key, one in of.items()}
        for place, of in sorted(rows.items())
    }


def both_table() -> str:
    """Return a table of service, and of the minimum fair share in any minute.

    Service is relative to the highest possible service. Among the schedulers with a higher minimum
    fair share than ``fair-finish``, the table shows the scheduler with the most service.
    """
    body = []
    for place, found in both_measures().items():
        ours = found["published", OURS]
        fairer = [
            (one, pair)
            for (form, pair), one in found.items()
            if form == "published" and one.worst_minute > ours.worst_minute
        ]
        rival, pair = max(fairer, default=(None, ""))
        tuned = [str(found["tuned", name]) for name in FAIREST]
        body.append([place, str(ours), f"{pair}: {rival}" if pair else "none", *tuned])
    tuned = [f"{name}, tuned" for name in FAIREST]
    return as_markdown(["configuration", OURS, "fairer worst minute", *tuned], body)


def service_table() -> str:
    """Return two schedulers' service relative to the highest possible service at fair shares.

    The rows are configurations in which fair shares lower the highest possible service.
    """
    body = []
    for place, by_scheduler in _by_place().items():
        most, fair = (_mean(by_scheduler[OURS], name) for name in SERVICE_LIMITS)
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
    """Return a table of the fractions of GPU time that each scheduler spends on each purpose.

    The table leaves out configurations in which arrivals or one long program determine the
    makespan.
    """
    body = []
    bound = {place: found for place, found in _by_place().items() if _is_bound(found)}
    for name in SCHEDULERS:
        runs = [one for found in bound.values() for one in found.get(name, [])]
        shares = [_mean(runs, f"time_{key}_ratio") for key in PURPOSES]
        body.append([name, *(f"{share:.1%}" for share in shares)])
    return as_markdown(["GPU time of", *PURPOSES.values()], body)


def _is_bound(found: Mapping[str, Sequence[Row]]) -> bool:
    """Return whether the makespan depends on GPU work, not on arrivals or the longest program."""
    return all(
        float(run["least_gpu_s"]) / DP >= NEARLY * float(run[BY_CALLS])
        for runs in found.values()
        for run in runs
    )


def _by_place() -> dict[str, dict[str, list[dict[str, str]]]]:
    found: dict[str, dict[str, list[dict[str, str]]]] = {}
    for row in stored_rows(TABLE):
        place = f"{row['workload']} {row['scenario']}"
        found.setdefault(place, {}).setdefault(row["scheduler"], []).append(row)
    return found


def _mean(found: Sequence[Row], name: str) -> float:
    return fmean(float(row[name]) for row in found)


def _marked(share: float, best: float) -> str:
    return f"**{share:.0%}**" if share == best else f"{share:.0%}"


def main(*seeds: str) -> None:
    """Simulate the missing runs, and print and write the tables of limits."""
    try:
        extend([int(seed) for seed in seeds] or SEEDS)
    except ValueError:
        raise SystemExit(f"seeds = {' '.join(seeds)}: must be whole numbers") from None
    for table in tables().values():
        sys.stdout.write(f"{table}\n")
    write_tables(PAGE, tables())
