"""The fairest scheduler for separate prefill and decode workers, compared with colocated replicas.

    python studies disaggregation-fair WORKLOAD,... SEED ...   # simulates; needs FAIRBENCH_DATA
    python studies disaggregation-fair                         # writes the table of the stored runs

The script appends its runs to results/disaggregation.csv, and writes
results/tables/disaggregation-fair.csv. The scheduler was chosen with short runs of seed 0, so the
table uses other seeds. For the workload tot, the number of decode slots was chosen after a full run
with seed 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from fairbench_studies.disaggregation.table import (
    COLOCATED,
    FORMS,
    KEY,
    P50,
    RUNS,
    SCHEDULERS,
    SERVICE,
    SHARES,
    WORKLOADS,
    measured,
)
from fairbench_studies.kit.rows import Row, extend_rows, read_rows
from fairbench_studies.kit.table_store import write
from fairbench_studies.kit.table_text import differs, plus_minus

OURS = "fair-finish+vtc-match"
UNSEEN = ("1", "2", "3", "4")
SETTINGS = {"disaggregation.reserve": "admission", "disaggregation.charge_outputs": True}
# All decode workers together run as many requests as four colocated replicas run by default.
REQUESTS = 4 * 64
# ``RATIOS`` maps each workload to its number of prefill workers and its number of decode workers.
RATIOS = {"sessions": (2, 2), "judge": (2, 2), "tot": (1, 3), "long-qa": (2, 2)}


def ratio(workload: str) -> str:
    """Return the ratio of prefill to decode workers in runs of ``workload``, such as ``1:3``."""
    return ":".join(map(str, RATIOS[workload]))


def run(workload: str, scheduler: str, form: str, seed: int) -> dict[str, Any]:
    """Simulate scenario s1, and return a row of results/disaggregation.csv."""
    if form == COLOCATED:
        return measured(workload, scheduler, form, seed, *FORMS[form])
    prefill, decode = RATIOS[workload]
    flags = {"prefill": prefill, "decode": decode}
    settings = {**SETTINGS, "engine.max_running_requests": REQUESTS // decode}
    return measured(workload, scheduler, form, seed, flags, settings)


def points(workloads: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, str, int]]:
    """Yield runs of ``OURS`` on separate workers, and of all schedulers on colocated replicas."""
    for workload, seed in product(workloads, seeds):
        yield workload, OURS, ratio(workload), seed
        for scheduler in SCHEDULERS:
            yield workload, scheduler, COLOCATED, seed


def table(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Yield a row per workload and colocated scheduler, from runs with the seeds in ``UNSEEN``."""
    found = {tuple(row[name] for name in KEY): row for row in rows}
    for workload, scheduler in product(WORKLOADS, SCHEDULERS):
        keys = [(OURS, ratio(workload)), (scheduler, COLOCATED)]
        pairs = [[found.get((workload, *key, seed)) for key in keys] for seed in UNSEEN]
        if all(one is not None for pair in pairs for one in pair):
            yield _row(workload, scheduler, pairs)


def _row(workload: str, scheduler: str, pairs: Any) -> dict[str, str]:
    ours, base = zip(*pairs, strict=True)
    rates = [100 * (float(a[SERVICE]) / float(b[SERVICE]) - 1) for a, b in pairs]
    share, minute = (_points(pairs, name) for name in SHARES)
    return {
        "workload": f"{workload}, {ratio(workload)}",
        "colocated scheduler": scheduler,
        "P50, s": _mean(ours, P50),
        "P50 colocated, s": _mean(base, P50),
        "throughput, %": _bold(rates),
        "minimum fair share, points": share,
        "in the worst minute, points": minute,
    }


def _mean(rows: Sequence[Mapping[str, str]], name: str) -> str:
    values = [float(row[name]) for row in rows]
    at_least = any(row["at_least"] for row in rows)
    return ("> " if at_least else "") + plus_minus(values, 0 if max(values) >= 100 else 1, "")


def _points(pairs: Any, name: str) -> str:
    known = [(a[name], b[name]) for a, b in pairs if a[name] and b[name]]
    return _bold([100 * (float(a) - float(b)) for a, b in known]) if known else "-"


def _bold(changes: Sequence[float]) -> str:
    text = plus_minus(changes, 1)
    return f"**{text}**" if differs(changes) else text


def main(workloads: str = "", *seeds: str) -> None:
    """Simulate the missing runs, and write the table of colocated and separate workers."""
    names = workloads.split(",") if workloads else []
    extend_rows(RUNS, KEY, points(names, [*map(int, seeds)]), run)
    write("disaggregation-fair", [*table(read_rows(RUNS))])
