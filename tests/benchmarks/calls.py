"""Count the calls per simulated request: python tests/benchmarks/calls.py [--by-module]

Counts calls of Python and C functions with cProfile, and events of the clock. Counts do not depend
on the machine's load as times do, but they miss the work within a call. With ``--bytecodes``, the
interpreter reports each bytecode, which takes minutes and misses only the work of C functions.
"""

import argparse
import cProfile
import pstats
import sys
from collections import Counter
from pathlib import Path

from fairbench.config.resolve import resolve
from fairbench.sim.run import Simulation, no_collector

CELLS = {
    "chat s1 `fcfs`": {
        "workload": "chat",
        "scheduler": "fcfs",
        "request_rate": 4.0,
        "duration_s": 40.0,
    },
    "tot s1 `d2lpm`": {
        "workload": "tot",
        "scheduler": "d2lpm",
        "request_rate": 0.1,
        "duration_s": 120.0,
    },
}
C_FUNCTIONS = "~"  # the file name that pstats gives for C functions


def simulation_of(flags):
    spec = resolve({"scenario": "s1", "dp": 4} | flags, {})
    return Simulation(spec, spec.client_plans(), spec.source())


def profiled(flags):
    """Run a simulation. Return it, and the profiler's statistics of the run alone."""
    simulation = simulation_of(flags)
    profile = cProfile.Profile()
    with no_collector():
        profile.runcall(simulation.run)
    return simulation, pstats.Stats(profile).stats


def row(flags):
    simulation, stats = profiled(flags)
    requests = len(simulation.cluster.request_log)
    calls = {where: counts[1] for where, counts in stats.items()}
    python = sum(count for where, count in calls.items() if where[0] != C_FUNCTIONS)
    events = sum(
        n for where, n in calls.items() if where[0].endswith("clock.py") and where[2] == "step"
    )
    numbers = (sum(calls.values()), python, events, len(simulation.log))
    return requests, *(number / requests for number in numbers)


def by_module(flags):
    """Return the calls per request of each module's functions, including called C functions."""
    simulation, stats = profiled(flags)
    requests, found = len(simulation.cluster.request_log), Counter()
    for where, (_, count, _, _, callers) in stats.items():
        if where[0] != C_FUNCTIONS:
            found[where[0]] += count
            continue
        for caller, (_, n, _, _) in callers.items():
            found[caller[0]] += n
    return [(Path(name).name, count / requests) for name, count in found.most_common(30)]


def bytecodes(flags):
    """Return the bytecodes of Python functions per request."""
    simulation, count = simulation_of(flags), 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    with no_collector():
        sys.settrace(trace)
        simulation.run()
        sys.settrace(None)
    return count / len(simulation.cluster.request_log)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by-module", action="store_true")
    parser.add_argument("--bytecodes", action="store_true")
    given = parser.parse_args()
    if given.by_module:
        for name, flags in CELLS.items():
            print(f"\n| {name} | calls a request |\n|---|--:|")
            for module, calls in by_module(flags):
                print(f"| `{module}` | {calls:.1f} |")
        return
    if given.bytecodes:
        print("| dp 4 | bytecodes a request |\n|---|--:|")
        for name, flags in CELLS.items():
            print(f"| {name} | {bytecodes(flags):,.0f} |", flush=True)
        return
    print("| dp 4 | requests | calls each | of Python functions | events | rows of the log |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, flags in CELLS.items():
        requests, *numbers = row(flags)
        print(f"| {name} | {requests:,} |", *(f"{number:.1f} |" for number in numbers))


if __name__ == "__main__":
    main()
