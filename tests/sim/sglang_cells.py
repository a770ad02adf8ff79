"""Whole experiments through SGLang's own scheduler classes, against the simulator's records.

    python tests/sim/sglang_cells.py CELL ... [--seconds N] [--drain N] [--table FILE]

in the environment that tests/sglang_cpu/install.sh makes. A CELL is like tot-s1-dlpm.
"""

from __future__ import annotations

import argparse
import csv
import gc
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sglang_replica import sglang_workers

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation, source_of

TABLE = Path(__file__).resolve().parents[2] / "results" / "tables" / "sglang-cells.csv"
TABLES = {
    "requests": ("request_id",),
    "programs": ("program_id",),
    "service": ("start_ps", "worker", "client"),
}


def cell(workload, scenario, scheduler, *, dp=4, seconds=None, drain=None, seed=0, **settings):
    """The experiment of a default cell, or its first ``seconds`` of arrivals."""
    given = {"workload": workload, "scenario": scenario, "scheduler": scheduler}
    given |= {"dp": dp, "seed": seed}
    if seconds is not None:
        given["duration_s"] = seconds
    if drain is not None:
        given["max_drain_s"] = drain
    return resolve(given, {key.replace("__", "."): value for key, value in settings.items()})


@dataclass
class Served:
    """What a simulation wrote down: each table's columns, rows in an order of their own."""

    tables: dict
    seconds: float

    @property
    def facts(self):
        """How much there was to get wrong."""
        requests, service = self.tables["requests"], self.tables["service"]
        _, first = np.unique(
            np.stack([service["worker"], service["start_ps"]]), axis=1, return_index=True
        )
        return {
            "requests": len(requests["request_id"]),
            "iterations": int(service["steps"][first].sum()),
            "prefills": int((service["context_tokens"][first] == 0).sum()),
            "retractions": int(requests["retractions"].sum()),
            "rows": sum(len(next(iter(table.values()))) for table in self.tables.values()),
        }

    def unlike(self, other):
        """How many rows are not the same in both, of all tables."""
        return sum(
            abs(len(ours[key]) - len(theirs[key])) + int(_differing(ours, theirs).sum())
            for key, ours, theirs in (
                (keys[0], self.tables[name], other.tables[name]) for name, keys in TABLES.items()
            )
        )


def _differing(ours, theirs):
    """Which rows, of those that both have, are not the same."""
    both = min(len(next(iter(table.values()))) for table in (ours, theirs))
    return np.any([ours[name][:both] != theirs[name][:both] for name in ours], axis=0)


def serve(spec, worker_of=None):
    """Run an experiment, on the simulator's own workers if no others are given."""
    start = time.perf_counter()
    extra = {} if worker_of is None else {"worker_of": worker_of}
    simulation = Simulation(spec, spec.client_plans(), source_of(spec), **extra)
    simulation.run()
    simulation.cluster.settle()
    tables = {}
    for name, keys in TABLES.items():
        log = getattr(simulation.logs, name)
        columns = {column: np.asarray(log.column(column)) for column in log.names}
        order = np.lexsort([columns[key] for key in reversed(keys)])
        tables[name] = {column: values[order] for column, values in columns.items()}
    simulation.cluster.abandon()
    return Served(tables, time.perf_counter() - start)


def longest_of(served):
    """Tokens of the longest request with all the output that it may have."""
    requests = served.tables["requests"]
    return int((requests["input_tokens"] + requests["max_new_tokens"]).max(initial=1))


def serve_by_sglang(spec, longest, **how):
    """The same experiment on workers whose decisions are SGLang's."""
    with sglang_workers(spec, longest=longest, **how) as worker_of:
        return serve(spec, worker_of)


def differences(want, got):
    """What differs, a line a table: nothing if the records are identical."""
    lines = []
    for name, keys in TABLES.items():
        ours, theirs = want.tables[name], got.tables[name]
        rows = len(ours[keys[0]]), len(theirs[keys[0]])
        other = _differing(ours, theirs)
        if rows[0] != rows[1] or other.any():
            lines.append(f"{name}: {rows[0]} and {rows[1]} rows, {other.sum()} differ")
            for at in np.flatnonzero(other)[:3]:
                lines += [
                    f"  {column} {ours[column][at]} | {theirs[column][at]}"
                    for column in ours
                    if column in keys or ours[column][at] != theirs[column][at]
                ]
    return lines


def compare(spec, **how):
    """Both ways, and what differs."""
    ours = serve(spec)
    theirs = serve_by_sglang(spec, longest_of(ours), **how)
    return ours, theirs, differences(ours, theirs)


def row_of(spec, name, ours, theirs, lines):
    """What a comparison of a cell found, for the table."""
    length = spec.duration_s + spec.max_drain_s
    return {
        "cell": name,
        "simulated, s": f"{length:,.0f}",
        **{key: f"{value:,}" for key, value in ours.facts.items()},
        "rows that differ": f"{ours.unlike(theirs):,}",
    }


def run_cell(name, table, **length):
    """Compare a cell, say how it went, and put its row into ``table``."""
    workload, _, rest = name.rpartition("-s")
    scenario, _, scheduler = rest.partition("-")
    spec = cell(workload, f"s{scenario}", scheduler, **length)
    ours, theirs, lines = compare(spec)
    row = row_of(spec, name, ours, theirs, lines)
    times = f"simulator {ours.seconds:.0f} s, SGLang's code {theirs.seconds:.0f} s"
    print(*[f"{key} {value}" for key, value in row.items()], times, sep=", ", flush=True)
    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    write_row(table, row)


def write_row(table, row):
    """Into a CSV file, in place of the cell's row of this length, if there is one."""
    keys = ("cell", "simulated, s")
    rows = list(csv.DictReader(table.open(newline=""))) if table.exists() else []
    rows = [old for old in rows if any(old[key] != row[key] for key in keys)] + [row]
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda one: [one[key] for key in keys]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="+", help="such as tot-s1-dlpm")
    parser.add_argument("--seconds", type=float, help="of arrivals (default: all)")
    parser.add_argument("--drain", type=float, help="seconds after them (default: all)")
    parser.add_argument("--table", type=Path, default=TABLE)
    given = parser.parse_args()
    gc.freeze()
    gc.disable()
    for name in given.cells:
        run_cell(name, given.table, seconds=given.seconds, drain=given.drain)


if __name__ == "__main__":
    main()
