"""Measure how soon a returned worker serves again: python tests/benchmarks/worker_back.py

In the simulation, sixteen clients use four workers under ``d2lpm``, and each client's requests
begin with its own 2,048 tokens. Worker 1 receives nothing after half of the time, and returns after
20 s with an empty cache, as far as the router knows. Each row is a value of ``d2lpm.fill_below``; 0
is Algorithm 2 as published.

Columns: requests dispatched in the 60 s after the return, worker 1's share of them (a quarter is
fair), requests per second over the whole run, and the mean end-to-end latency of requests that
arrived in those 60 s. The second table repeats the loads without losing a worker, which shows the
rule's cost.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from fairbench.config.resolve import experiment
from fairbench.sim.run import Simulation

AWAY, WORKERS, CLIENTS = 1, 4, 16
END_S, AWAY_S, WINDOW_S = 400.0, 20.0, 60.0
LIMITS = (0, 2, 8, 32)
RATES = (20.0, 30.0, 45.0)


def trace_of(folder, rate):
    """Return a trace file of Poisson arrivals at a total of ``rate`` per second."""
    rng, at_s, lines = random.Random(7), 0.0, []
    while at_s < END_S:
        client = rng.randrange(CLIENTS)
        row = {
            "time_s": round(at_s, 6),
            "client": f"client-{client:02}",
            "input_length": 2048 + rng.randint(50, 450),
            "output_length": rng.randint(50, 350),
            "hash_ids": [10 * client + block for block in range(4)],
            "block_size": 512,
        }
        lines.append(json.dumps(row))
        at_s += rng.expovariate(rate)
    path = Path(folder) / "trace.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


class Watched:
    """A router's ``route`` that applies changes at given times and records the choices."""

    def __init__(self, router, changes):
        self._route, self._changes, self.sent = router.route, list(changes), []

    def __call__(self, request, now_s):
        while self._changes and now_s >= self._changes[0][0]:
            self._changes.pop(0)[1](AWAY, now_s)
        worker = self._route(request, now_s)
        self.sent.append((now_s, worker))
        return worker


def simulated(path, limit, *, lost):
    """Return the window's requests, worker 1's share, requests/s, and the window's latency."""
    settings = {"d2lpm.fill_below": limit}
    spec = experiment({"trace": str(path), "scheduler": "d2lpm", "dp": WORKERS}, settings)
    simulation = Simulation(spec, spec.client_plans(), source := spec.source())
    router, gone_s = simulation.cluster.router, END_S / 2
    back_s = gone_s + AWAY_S
    changes = [(gone_s, router.on_worker_leave), (back_s, router.on_worker_join)] if lost else []
    router.route = watched = Watched(router, changes)
    simulation.run()
    result = simulation.result(True, source)
    window = [worker for at_s, worker in watched.sent if back_s <= at_s < back_s + WINDOW_S]
    rows = zip(*(result.requests[name].tolist() for name in ("arrival_s", "finish_s")), strict=True)
    waits = [end - at for at, end in rows if back_s <= at < back_s + WINDOW_S and end is not None]
    return (
        *(len(window), window.count(AWAY) / max(1, len(window))),
        *(len(watched.sent) / result.summary["duration"], sum(waits) / max(1, len(waits))),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for lost in (True, False):
            for rate in RATES:
                for limit in LIMITS:
                    row = simulated(trace_of(folder, rate), limit, lost=lost)
                    sys.stdout.write(
                        f"{lost} {rate} {limit}: {row[0]} {row[1]:.1%} {row[2]:.2f}/s "
                        f"{row[3]:.2f} s\n"
                    )
                    sys.stdout.flush()
