"""How many requests the simulator does per CPU second: python tests/benchmarks/simulator.py [...]

Prints one line per case. CPU time is of this process, start-up left out; compare ratios within one
run, since machines differ and are shared.

  cells   every workload and scheduler, at --dp
  queue   a burst of so many requests waiting at once, under each local scheduler
  length  one request after another with ever longer outputs: the cost must not follow
"""

import argparse
import time

from fairbench.config.resolve import resolve
from fairbench.schedulers.registry import LOCALS, PAIRS
from fairbench.sim.run import simulate
from fairbench.workloads.spec import workload_names


def measure(label, flags, settings=None):
    """Requests, CPU seconds and requests per CPU second of one experiment."""
    spec = resolve(flags, settings or {})
    start = time.process_time()
    requests = len(simulate(spec).requests["request_id"])
    seconds = time.process_time() - start
    print(f"{label:32}{requests:9,} requests {seconds:7.2f} s {requests / seconds:9,.0f}/s")


def cells(dp):
    for workload in workload_names():
        for scheduler in PAIRS:
            flags = {"workload": workload, "scenario": "s1", "scheduler": scheduler, "dp": dp}
            measure(f"{workload} {scheduler} dp {dp}", flags)


def queue():
    for local in LOCALS:
        for waiting in (100, 1_000, 10_000):
            flags = {
                "workload": "chat",
                "scenario": "none",
                "router": "round-robin",
                "local": local,
                "clients": 4,
                "num_programs": waiting // 4,
                "request_rate": float("inf"),
            }
            settings = {"chat.turns_min": 1, "chat.turns_max": 1}
            if local == "rpm":
                settings["rpm.limit"] = 10**6
            measure(f"{local}, {waiting:,} waiting", flags, settings)


def length():
    for tokens in (16, 256, 4_096):
        flags = {"workload": "tot", "scenario": "none", "num_programs": 40, "request_rate": 1.0}
        measure(f"outputs of {tokens:,}", flags, {"tot.output_tokens": tokens})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("cells", "queue", "length"))
    parser.add_argument("--dp", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.what == "cells":
        cells(arguments.dp)
    elif arguments.what == "queue":
        queue()
    else:
        length()
