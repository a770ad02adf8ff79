"""Measure the cost of many clients: many_clients.py [SCHEDULER...] [--clients 3 1000]

Prints a Markdown table: CPU microseconds per request of the simulation and of its metrics, and rows
of the service log per request. The total load is the same for each number of clients: chat without
a heavy client. To compare machines, the last column has the number of requests in the time that 10
million additions take. CPU time is that of this process without imports; compare ratios within a
run.
"""

import argparse
import time
from itertools import repeat
from typing import NamedTuple

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation, no_collector

PROGRAMS_PER_S = 6.0  # programs per second of all clients, about a replica's capacity
YARDSTICK = {"chat s1 `fcfs`": ("chat", "fcfs"), "tot s1 `d2lpm`": ("tot", "d2lpm")}
ADDITIONS = 10_000_000


class Cost(NamedTuple):
    requests: int
    simulation_s: float
    metrics_s: float
    rows: int

    @property
    def total_us(self):
        return 1e6 * (self.simulation_s + self.metrics_s) / self.requests


def cost(flags):
    spec = resolve(flags, {})
    source = spec.source()
    start_s = time.process_time()
    with no_collector():
        simulation = Simulation(spec, spec.client_plans(), source)
        simulation.run()
        simulated_s = time.process_time()
        result = simulation.result(True, source)
    done_s = time.process_time()
    requests = result.summary["num_requests"]
    return Cost(requests, simulated_s - start_s, done_s - simulated_s, len(simulation.log))


def row(scheduler, clients, dp, duration_s, rounds):
    """Return the cheapest of several rounds for each number of clients, measured in turn."""
    found = {}
    for _ in range(rounds):
        for count in clients:
            flags = {
                "workload": "chat",
                "scenario": "none",
                "scheduler": scheduler,
                "dp": dp,
                "clients": count,
                "request_rate": dp * PROGRAMS_PER_S / count,
                "duration_s": duration_s,
            }
            found.setdefault(count, []).append(cost(flags))
    best = [min(costs, key=lambda one: one.total_us) for costs in found.values()]
    for one in best:
        yield f"{1e6 * one.simulation_s / one.requests:,.0f}"
        yield f"{1e6 * one.metrics_s / one.requests:,.0f}"
        yield f"{one.rows / one.requests:.1f}"
    yield f"{best[-1].total_us / best[0].total_us:.2f}"


def additions_s():
    """Return the CPU seconds that a fixed number of plain additions takes."""
    total, start_s = 0, time.process_time()
    for one in repeat(1, ADDITIONS):
        total += one
    return time.process_time() - start_s


def yardstick(rounds):
    """Return for each experiment the number of requests in the time of the additions."""
    for name, (workload, scheduler) in YARDSTICK.items():
        flags = {"workload": workload, "scenario": "s1", "scheduler": scheduler, "dp": 4}
        found = []
        for _ in range(rounds):
            before_s = additions_s()
            one = cost(flags)
            plain_s = (before_s + additions_s()) / 2
            found.append(one.requests * plain_s / (one.simulation_s + one.metrics_s))
        yield name, max(found)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schedulers", nargs="*", default=["fcfs", "vtc", "dlpm", "d2lpm"])
    parser.add_argument("--clients", type=int, nargs="+", default=[3, 1000])
    parser.add_argument("--dp", type=int, default=1)
    parser.add_argument("--duration", type=float, default=300.0)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    cost({"workload": "chat", "scenario": "none", "num_programs": 1})  # imports everything once
    whats = ("simulation", "metrics", "rows")
    columns = [f"{what}, {count:,} clients" for count in given.clients for what in whats]
    print("| us of CPU a request |", *(f"{column} |" for column in (*columns, "ratio")))
    print("|---|" + "--:|" * (len(columns) + 1))
    for scheduler in given.schedulers:
        cells = row(scheduler, given.clients, given.dp, given.duration, given.rounds)
        print(f"| {scheduler} |", *(f"{cell} |" for cell in cells), flush=True)
    print("\n| requests in the time of 10 million additions |\n|---|--:|")
    for name, requests in yardstick(given.rounds):
        print(f"| {name} | {requests:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
