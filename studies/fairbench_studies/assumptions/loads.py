"""The rule that chooses the bundled workloads' loads, from runs under LPM and VTC.

    python studies loads [--gpu GPU] [--model MODEL] [WORKLOAD.SCENARIO ...]

The script takes half an hour for all workloads on two cores, and writes
results/tables/default-loads.csv (for another GPU, default-loads-GPU.csv).
docs/studies/assumptions.md explains how the loads are chosen. The search for a load begins with the
arrival rate in the workload file. A replica must be overloaded at three times the arrival rate in
the workload file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from math import floor, log10
from typing import Any, NamedTuple

import fairbench
from fairbench.config.resolve import resolve
from fairbench_studies.kit.rows import TABLES, write_rows

CELLS = (
    *("tot.s1", "tot.s2", "judge.s1", "judge.s2", "long-qa.s1", "long-qa.s2", "chat.s1"),
    *("tool-use.s1", "agent.s1", "programming.s1", "video-qa.s1", "loogle.s1", "preble-mix.s1"),
    *("reasoning.s1", "reasoning.s2"),
)
MULTIPLES = tuple(round(1.25 - 0.05 * step, 2) for step in range(24))
SEEDS = (0, 1, 2)
REPLICAS = 4
# Arrivals at ``FLOOD`` times the rate in the workload file overload a replica for ``FLOOD_S``
# seconds.
FLOOD_S, FLOOD = 300.0, 3.0
# ``LONG_FLOODS_S`` replaces ``FLOOD_S`` where a single answer takes five minutes.
LONG_FLOODS_S = {"reasoning.s2": 1200.0}
MOST_EMPTY = 0.05


class Machine(NamedTuple):
    """The GPU and the model of the simulated replicas."""

    gpu: str
    model: str


class Choice(NamedTuple):
    """The load chosen for a configuration, in programs/s per well-behaved client and GPU."""

    cell: str
    lpm_capacity: float
    vtc_capacity: float
    multiple: float
    rate: float
    vtc_p99_s: float
    window_s: float


def run(cell: str, machine: Machine, scheduler: str, **flags: Any) -> Mapping[str, Any]:
    """Simulate a configuration, and return the summary of the run."""
    workload, scenario = cell.split(".")
    return fairbench.run(
        workload=workload,
        scenario=scenario,
        scheduler=scheduler,
        gpu=machine.gpu,
        model=machine.model,
        **flags,
    ).summary


def file_rate(cell: str, machine: Machine) -> float:
    """Return a workload file's arrival rate for a well-behaved client, in programs/s per GPU."""
    workload, scenario = cell.split(".")
    spec = resolve({"workload": workload, "scenario": scenario, **machine._asdict()})
    return spec.workload.scenario(scenario).rate_on(spec.gpu)


def capacity(cell: str, machine: Machine, scheduler: str) -> float:
    """Return the programs/s per well-behaved client that one replica completes under overload.

    Every client sends more than the replica can serve, for at least five minutes. The number of
    programs is divided by the run time until all programs have finished.
    """
    flood, lasting_s = FLOOD * file_rate(cell, machine), LONG_FLOODS_S.get(cell, FLOOD_S)
    summary = run(cell, machine, scheduler, dp=1, request_rate=flood, duration=lasting_s)
    assert not summary["unfinished"], f"{cell}: {scheduler} did not come to an end"
    assert summary["duration"] > 1.3 * lasting_s, f"{cell}: not flooded under {scheduler}"
    return flood * lasting_s / float(summary["duration"])


def two_digits(rate: float) -> float:
    """Return a rate, rounded to two significant digits."""
    return round(rate, 1 - floor(log10(rate)))


def latency_s(cell: str, machine: Machine, rate: float) -> tuple[float, float]:
    """Return the highest P99 latency over the seeds under VTC, and the measurement window's length.

    Both times are in seconds. The P99 latency covers the requests of all well-behaved clients, and
    is infinite if any request of a run is unfinished.
    """
    worst = window_s = 0.0
    for seed in SEEDS:
        found = run(cell, machine, "vtc", dp=REPLICAS, request_rate=rate * REPLICAS, seed=seed)
        window_s = found["window_end_s"] - found["window_start_s"]
        if found["unfinished"]:
            return float("inf"), window_s
        worst = max(worst, found["victim_p99_s"])
        if worst > window_s:
            break
    return worst, window_s


def choose(cell: str, machine: Machine) -> Choice:
    """Choose the largest load at which VTC's P99 latency fits into the measurement window."""
    lpm, vtc = (capacity(cell, machine, scheduler) for scheduler in ("lpm", "vtc"))
    low, high = 0, len(MULTIPLES) - 1
    found: dict[int, tuple[float, float]] = {}
    # Binary search works because latency rises with the load.
    while low < high:
        middle = 0 if not found else (low + high) // 2
        found[middle] = latency_s(cell, machine, two_digits(MULTIPLES[middle] * lpm))
        if found[middle][0] <= found[middle][1]:
            high = middle
        else:
            low = middle + 1
    rate = two_digits(MULTIPLES[low] * lpm)
    p99_s, window_s = found.get(low) or latency_s(cell, machine, rate)
    for scheduler in ("lpm", "vtc"):
        empty = run(cell, machine, scheduler, dp=REPLICAS, request_rate=rate * REPLICAS)
        assert empty["queue_empty_share"] <= MOST_EMPTY, f"{cell}: {scheduler} has empty queues"
    return Choice(cell, lpm, vtc, MULTIPLES[low], rate, p99_s, window_s)


def main(*arguments: str) -> None:
    """Choose the load of each configuration, and write the file of loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="a100")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("cells", nargs="*", default=CELLS)
    given = parser.parse_args(arguments)
    machine = Machine(given.gpu, given.model)
    with ProcessPoolExecutor(2) as pool:
        choices = []
        for choice in pool.map(choose, given.cells, [machine] * len(given.cells)):
            sys.stdout.write(f"{choice}\n")
            choices.append(choice)
    own = "" if given.gpu == "a100" else f"-{given.gpu}"
    rows = [
        {k: f"{x:.3g}" if isinstance(x, float) else x for k, x in one._asdict().items()}
        for one in choices
    ]
    write_rows(TABLES / f"default-loads{own}.csv", rows)
