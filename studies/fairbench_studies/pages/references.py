"""The reference shares under FCFS that ``fairbench run`` prints.

The script ``python studies references`` simulates each bundled workload and scenario on 1, 2 and 4
replicas with seed 0, and writes the lowest fair shares and the throughput to
bench/fairbench/results/references.csv.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator

from fairbench.config import ExperimentSpec
from fairbench.config.resolve import resolve
from fairbench.config.spec import experiment_tables
from fairbench.errors import DataError, UsageError
from fairbench.results.references import (
    FILE,
    SCHEDULER,
    SHARES,
    THROUGHPUT,
    place_key,
    reference_of,
)
from fairbench.sim.run import simulate
from fairbench.workloads.spec import load_workload, workload_names
from fairbench_studies.kit.rows import ROOT

REPLICAS = (1, 2, 4)


def points() -> Iterator[ExperimentSpec]:
    """Yield the experiments of all workloads that need no data set."""
    for name in workload_names():
        for scenario in load_workload(name).scenarios:
            for dp in REPLICAS:
                point = {"workload": name, "scenario": scenario, "dp": dp, "scheduler": SCHEDULER}
                try:
                    spec = resolve(point, {}, None)
                    spec.client_plans()
                except UsageError as error:
                    sys.stderr.write(f"{name} {scenario}: {error}\n")
                    break
                yield spec


def main() -> None:
    """Write bench/fairbench/results/references.csv."""
    path = ROOT / "bench" / "fairbench" / "results" / FILE
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["place", "workload", "scenario", "dp", "seed", *SHARES, THROUGHPUT])
        for spec in points():
            try:
                found = reference_of(simulate(spec).summary).values
            # Skip a workload whose data file is missing from the folder FAIRBENCH_DATA.
            except DataError as error:
                sys.stderr.write(f"{spec.workload.name} {spec.scenario}: {error}\n")
                continue
            numbers = (found[key] for key in (*SHARES, THROUGHPUT))
            values = ["" if number is None else f"{number:.6f}" for number in numbers]
            place = place_key(experiment_tables(spec))
            writer.writerow([place, spec.workload.name, spec.scenario, spec.dp, spec.seed, *values])
            file.flush()
