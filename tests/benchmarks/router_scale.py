"""Measure a router's process as the fleet grows: python tests/benchmarks/router_scale.py

Reports decisions per CPU second (a route and, later, its finish), Python and C calls per decision
(the same in every run), and memory, at 64 to 1,000 workers and 10,000 clients. Each size runs in
its own process. Every client holds a conversation, which begins with 66 tokens that all share and
500 of its own; each request adds 40 tokens. Each worker has eight requests in flight. Nothing is
evicted, so the tree holds every prompt. Writes results/tables/router-scale.csv.
"""

import csv
import resource
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from fairbench.core import Request, Segment, prompt_tokens
from fairbench.schedulers.registry import build_router

TABLE = Path(__file__).resolve().parents[2] / "results/tables/router-scale.csv"
ROUTERS = ("round-robin", "least-loaded", "d2lpm", "preble-e2", "fair-finish")
WORKERS = (64, 256, 1000)
CLIENTS, UNDER_WAY = 10_000, 8
DECISIONS, COUNTED = 10_000, 200


class Traffic:
    """Requests from clients in turn. Each new request ends the oldest one in flight."""

    def __init__(self, name, workers):
        self.router = build_router(name, {}, workers)
        self.under_way = deque()
        self.most = UNDER_WAY * workers
        self.prompts = {}
        self.number = 0

    def decide(self):
        number, client = self.number, self.number % CLIENTS
        known = self.prompts.get(client) or (Segment("instruction", 66), Segment(f"c{client}", 500))
        prompt = self.prompts[client] = (*known, Segment(f"t{number}", 40))
        request = Request(number, f"client-{client}", number, 0, prompt, prompt_tokens(prompt), 256)
        self.under_way.append((request, self.router.route(request, number / 100)))
        if len(self.under_way) > self.most:
            ended, worker = self.under_way.popleft()
            self.router.on_finish(ended, worker, Segment(f"o{number}", 256), number / 100)
        self.number += 1


def cell(name, workers):
    """Return decisions per CPU second, calls per decision, and the MiB that the router added."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    traffic = Traffic(name, workers)
    for _ in range(CLIENTS):
        traffic.decide()
    start_s = time.process_time()
    for _ in range(DECISIONS):
        traffic.decide()
    rate = DECISIONS / (time.process_time() - start_s)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    for _ in range(COUNTED):
        traffic.decide()
    sys.setprofile(None)
    return f"{rate:,.0f}", f"{calls / COUNTED:,.0f}", f"{grown:,.0f}"


def main():
    if len(sys.argv) == 3:
        sys.stdout.write("\t".join(cell(sys.argv[1], int(sys.argv[2]))))
        return
    rows = []
    for name in ROUTERS:
        cells = []
        for workers in WORKERS:
            command = [sys.executable, __file__, name, str(workers)]
            made = subprocess.run(command, capture_output=True, text=True, check=True)
            cells.append(made.stdout.split("\t"))
        rows.append([f"`{name}`", *(one[place] for place in range(3) for one in cells)])
    whats = ("decisions/s", "calls each", "MiB")
    head = ["router", *(f"{what}, {workers:,}" for what in whats for workers in WORKERS)]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


if __name__ == "__main__":
    main()
