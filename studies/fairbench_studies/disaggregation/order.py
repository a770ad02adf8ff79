"""Rankings of ratios of prefill to decode replicas, simulated and measured on eight GPUs.

    python studies disaggregation-order results.csv

results.csv is ``comparison/pd_ratio/csv_data/results.csv`` of dstackai/benchmarks @06c957ab. In
each measured run, SGLang served gpt-oss-120b (TP 2) on 8 x H200, with 500 requests at a fixed
concurrency. The script takes ten seconds of CPU time, and writes
results/tables/disaggregation-order.csv. For each metric and each prompt and output length, the
table counts the pairs of ratios that the simulation and the measurement rank alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fairbench.config.resolve import resolve
from fairbench.sim.run import simulate
from fairbench_studies.kit.rows import read_rows
from fairbench_studies.kit.table_store import write

# The servers were measured with tensor parallelism 2, but no profile has tensor parallelism 2.
GPU = "h200-141gb/gpt-oss-120b/tp1/sglang-0.5.14"
NVLINK_GB_S = 450.0
# ``RATIOS`` has the ratios of prefill to decode replicas that were measured on eight GPUs.
# ``RATIOS`` lacks the ratio 1:1, which was measured on only four GPUs.
RATIOS = ("1:3", "2:2", "3:1")
ALIKE = 0.05  # two values count as equal if they differ by less than this fraction
METRICS = {"output_throughput": "throughput", "median_ttft_ms": "TTFT", "median_tpot_ms": "TPOT"}


class Shape(NamedTuple):
    """The load of a benchmark: prompt and output length (tokens), and concurrent requests."""

    input_tokens: int
    output_tokens: int
    concurrency: int


Values = Mapping[str, float]
Points = Mapping[Shape, Mapping[str, Values]]
"""``METRICS`` and the mean output length (``answer``), by load and prefill-to-decode ratio."""


def measured(file: Path) -> Points:
    """Return the measured metrics by load, for each prefill-to-decode ratio in ``RATIOS``."""
    found: dict[Shape, dict[str, Values]] = defaultdict(dict)
    for row in read_rows(file):
        ratio = f"{row['prefill']}:{row['decode']}"
        shape = Shape(int(row["isl"]), int(row["osl"]), int(row["conc"]))
        if ratio in RATIOS:
            answers = int(row["total_output_tokens"]) / int(row["completed"])
            values = {key: float(row[key]) for key in METRICS}
            found[shape][ratio] = values | {"answer": answers}
    return found


def simulated(shape: Shape, ratio: str, answer: float) -> Values:
    """Simulate one load with one ratio of prefill to decode workers.

    Output lengths are drawn uniformly from 1 to about twice the measured mean ``answer``.
    """
    prefill, decode = map(int, ratio.split(":"))
    params = {"input_min": shape.input_tokens, "input_max": shape.input_tokens}
    params |= {"output_min": 1, "output_max": round(2 * answer) - 1}
    workload = {
        "name": "closed-loop",
        "description": "concurrent requests of one client",
        "program": "single",
        "latency": "ttft",
        "clients": 1,
        "duration_s": 60.0,
        "warmup_s": 0.0,
        "max_drain_s": 1e6,
        "params": params,
        "scenarios": {
            "s1": {
                "description": "at a fixed concurrency",
                "rate": 1.0,
                "misbehaving": [{"client": 0, "in_flight": shape.concurrency}],
            }
        },
    }
    flags: dict[str, Any] = {
        "workload": workload,
        "scheduler": "fcfs",
        "gpu": GPU,
        "model": "gpt-oss-120b",
    }
    flags |= {"prefill": prefill, "decode": decode, "num_programs": 500, "window": "whole"}
    flags |= {"request_rate": float("inf")}
    summary = simulate(resolve(flags, {"disaggregation.bandwidth_gb_s": NVLINK_GB_S})).summary
    return {key: summary[key] for key in METRICS}


class Agreement(NamedTuple):
    """Agreement of simulation and measurement: compared pairs of ratios, and pairs ranked alike."""

    pairs: int
    alike: int

    def __str__(self) -> str:
        return f"{self.alike} of {self.pairs}"


def agreement(key: str, measured: Mapping[str, Values], ours: Mapping[str, Values]) -> Agreement:
    """Compare measured and simulated rankings of prefill-to-decode ratios by the metric ``key``."""
    pairs = [
        (one, other)
        for one, other in combinations(sorted(measured), 2)
        if abs(measured[one][key] / measured[other][key] - 1) > ALIKE
    ]
    alike = sum(
        (measured[one][key] < measured[other][key]) == (ours[one][key] < ours[other][key])
        for one, other in pairs
    )
    return Agreement(len(pairs), alike)


def table(points: Points) -> list[dict[str, str]]:
    """Return a row for each combination of prompt and output length, and a row for all loads."""
    found: dict[tuple[str, str], list[Agreement]] = defaultdict(list)
    for shape, by_ratio in sorted(points.items()):
        answer = fmean(one["answer"] for one in by_ratio.values())
        ours = {ratio: simulated(shape, ratio, answer) for ratio in by_ratio}
        lengths = f"{shape.input_tokens:,} in, {shape.output_tokens:,} out"
        for key, metric in METRICS.items():
            compared = agreement(key, by_ratio, ours)
            found[lengths, metric].append(compared)
            found["all", metric].append(compared)
    rows = [lengths for lengths, _ in found if lengths != "all"]
    return [
        {"lengths": lengths}
        | {metric: str(_sum(found[lengths, metric])) for metric in METRICS.values()}
        for lengths in [*dict.fromkeys(rows), "all"]
    ]


def _sum(parts: list[Agreement]) -> Agreement:
    return Agreement(sum(one.pairs for one in parts), sum(one.alike for one in parts))


def main(file: str) -> None:
    """Read measurements from a file, simulate each measured load, and write a table of rankings."""
    write("disaggregation-order", table(measured(Path(file))))
