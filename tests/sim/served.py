"""Run whole experiments on chosen workers, and compare their records."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation

TABLES = {
    "requests": ("request_id",),
    "programs": ("program_id",),
    "service": ("start_ps", "worker", "client"),
}


def cell(workload, scenario, scheduler, *, dp=4, seconds=None, drain=None, seed=0, **settings):
    """Return the experiment of a default cell, or its first ``seconds`` of arrivals.

    In names of ``settings``, ``__`` stands for a dot. Names without it are arguments of the
    workload, such as a rate.
    """
    given = {"workload": workload, "scenario": scenario, "scheduler": scheduler}
    given |= {"dp": dp, "seed": seed}
    if seconds is not None:
        given["duration_s"] = seconds
    if drain is not None:
        given["max_drain_s"] = drain
    given |= {key: value for key, value in settings.items() if "__" not in key}
    dotted = {key.replace("__", "."): value for key, value in settings.items() if "__" in key}
    return resolve(given, dotted)


@dataclass
class Served:
    """The records of a simulation: each table's columns, with rows in a fixed order."""

    tables: dict
    seconds: float

    @property
    def facts(self):
        """Return the counts of events that could have gone wrong."""
        requests, service = self.tables["requests"], self.tables["service"]
        _, first = np.unique(
            np.stack([service["worker"], service["start_ps"]]), axis=1, return_index=True
        )
        computes = service["extend_tokens"] + service["recompute_tokens"] > 0
        prefills = np.stack([service["worker"], service["start_ps"]])[:, computes]
        return {
            "requests": len(requests["request_id"]),
            "iterations": int(service["steps"][first].sum()),
            "prefills": np.unique(prefills, axis=1).shape[1],
            "retractions": int(requests["retractions"].sum()),
            "rows": sum(len(next(iter(table.values()))) for table in self.tables.values()),
        }

    def unlike(self, other):
        """Return the number of rows that differ, over all tables."""
        return sum(
            abs(len(ours[key]) - len(theirs[key])) + int(_differing(ours, theirs).sum())
            for key, ours, theirs in (
                (keys[0], self.tables[name], other.tables[name]) for name, keys in TABLES.items()
            )
        )


def _differing(ours, theirs):
    """Return which rows differ, among those that both have."""
    both = min(len(next(iter(table.values()))) for table in (ours, theirs))
    return np.any([ours[name][:both] != theirs[name][:both] for name in ours], axis=0)


def serve(spec, worker_of=None):
    """Run an experiment, by default on the simulator's own workers."""
    start = time.perf_counter()
    extra = {} if worker_of is None else {"worker_of": worker_of}
    simulation = Simulation(spec, spec.client_plans(), spec.source(), **extra)
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
    """Return the tokens of the longest request with its maximum output."""
    requests = served.tables["requests"]
    return int((requests["input_tokens"] + requests["max_new_tokens"]).max(initial=1))


def differences(want, got):
    """Return the differences, a line per table, or nothing if the records are identical."""
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


def compare(spec, workers, **how):
    """Return a simulation's records, those on other ``workers``, and the differences.

    ``workers(spec, longest, **how)`` is a context that gives a ``worker_of``. No request with its
    output is longer than ``longest`` tokens.
    """
    ours = serve(spec)
    with workers(spec, longest_of(ours), **how) as worker_of:
        theirs = serve(spec, worker_of)
    return ours, theirs, differences(ours, theirs)
