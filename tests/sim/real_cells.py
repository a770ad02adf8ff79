"""Run whole experiments through an engine's own scheduler classes, and compare with the simulator.

    python -m tests.sim.real_cells ENGINE CELL ... [--seconds N] [--drain N] [--table FILE]

runs in the environment of tests/sglang_cpu/install.sh or tests/vllm_cpu/install.sh. ENGINE is
sglang or vllm, and a CELL is like tot-s1-dlpm.
"""

from __future__ import annotations

import argparse
import csv
import gc
from importlib import import_module
from pathlib import Path

from tests.sim.served import cell, compare

TABLES = Path(__file__).resolve().parents[2] / "results" / "tables"


def row_of(spec, name, ours, theirs):
    """Return the table row of a cell's comparison."""
    length = spec.duration_s + spec.max_drain_s
    return {
        "configuration": name,
        "simulated, s": f"{length:,.0f}",
        **{key: f"{value:,}" for key, value in ours.facts.items()},
        "rows that differ": f"{ours.unlike(theirs):,}",
    }


def run_cell(engine, name, table, **length):
    """Compare a cell, print the result, and write its row to ``table``."""
    workers = getattr(import_module(f"tests.sim.{engine}_replica"), f"{engine}_workers")
    workload, _, rest = name.rpartition("-s")
    scenario, _, scheduler = rest.partition("-")
    spec = cell(workload, f"s{scenario}", scheduler, engine=engine, **length)
    ours, theirs, lines = compare(spec, workers)
    row = row_of(spec, name, ours, theirs)
    times = f"simulator {ours.seconds:.0f} s, {engine}'s code {theirs.seconds:.0f} s"
    print(*[f"{key} {value}" for key, value in row.items()], times, sep=", ", flush=True)
    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    write_row(table, row)


def write_row(table, row):
    """Write the row to a CSV file. It replaces the row of the same cell and length, if any."""
    keys = ("configuration", "simulated, s")
    rows = list(csv.DictReader(table.open(newline=""))) if table.exists() else []
    rows = [old for old in rows if any(old[key] != row[key] for key in keys)] + [row]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda one: [one[key] for key in keys]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["sglang", "vllm"])
    parser.add_argument("cells", nargs="+", help="such as tot-s1-dlpm")
    parser.add_argument("--seconds", type=float, help="of arrivals (default: all)")
    parser.add_argument("--drain", type=float, help="seconds after them (default: all)")
    parser.add_argument("--table", type=Path, help="(results/tables/ENGINE-cells.csv)")
    given = parser.parse_args()
    engine, table = given.engine, given.table or TABLES / f"{given.engine}-cells.csv"
    getattr(import_module(f"tests.sim.{engine}_seam"), engine)()
    gc.freeze()  # imports create a million objects
    for name in given.cells:
        run_cell(engine, name, table, seconds=given.seconds, drain=given.drain)
        gc.collect()  # the KV trees are cycles


if __name__ == "__main__":
    main()
