"""Measure the speed and memory of the simulator: python tests/benchmarks/simulator.py MODE

Prints Markdown tables. CPU time is of this process, start-up (imports) left out; compare ratios
within one run, since machines differ and are shared.

  cells   simulated requests per CPU second: every workload and scheduler (or those named), by --dp
  queue   the same for a burst of so many requests waiting at once, under each local scheduler
  pass    milliseconds of one ordering pass over 1,000 waiting requests, each local scheduler
  length  requests with ever longer outputs: the cost must not follow
  prompts SGLang's workers and vLLM's with ever longer prompts that share nothing, pools full
  scale   1e5 and 1e6 requests, records written: CPU time and peak memory, each in a fresh process
"""

import argparse
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from fairbench.config.flags import RUN
from fairbench.config.resolve import experiment, resolve
from fairbench.core import Request, Segment, prompt_tokens
from fairbench.engine.kv_cache import KVCache
from fairbench.engine.sequence import Sequence
from fairbench.engine.waiting_queue import WaitingQueue
from fairbench.results.store import save_run
from fairbench.schedulers.registry import PAIRS, build_local, locals_by_name
from fairbench.sim.run import simulate
from fairbench.workloads.spec import workload_names

WAITING = (100, 1_000, 10_000)
PASSES = 200
UNLIMITED_RPM = {"rpm.limit": 10**6}
# the `--duration` for about so many requests of chat s1 at dp 4
SCALES = {"1e5": 585, "1e6": 7_500}


def table(corner, columns, rows):
    """Print the header at once, and each row as soon as it is known."""
    print(f"| {corner} |", *(f"{column} |" for column in columns))
    print("|---|" + "--:|" * len(columns))
    for name, cells in rows:
        print(f"| {name} |", end="", flush=True)
        for cell in cells:
            print(f" {cell} |", end="", flush=True)
        print()


def measure(flags, settings=None):
    """Return the requests and CPU seconds of one experiment."""
    spec = resolve(flags, settings or {})
    start_s = time.process_time()
    requests = simulate(spec).summary["num_requests"]
    return requests, time.process_time() - start_s


def per_second(flags, settings=None):
    requests, seconds = measure(flags, settings)
    return f"{requests / seconds:,.0f}"


def cells(workloads, schedulers, dps):
    """Measure each cell. Above dp 4, runs are shorter, with the same number of requests."""

    def rate(workload, scheduler, dp):
        flags = {"workload": workload, "scenario": "s1", "scheduler": scheduler, "dp": dp}
        duration_s = resolve(flags, {}).duration_s
        return per_second(flags | {"duration_s": duration_s * min(1, 4 / dp)})

    names = [(workload, scheduler) for workload in workloads for scheduler in schedulers]
    rows = ((f"`{w}` `{s}`", (rate(w, s, dp) for dp in dps)) for w, s in names)
    table("requests per CPU second", [f"dp {dp}" for dp in dps], rows)


def queue():
    def rate(local, waiting):
        flags = {
            "workload": "chat",
            "scenario": "none",
            "router": "round-robin",
            "local": local,
            "clients": 4,
            "num_programs": waiting // 4,
            "request_rate": float("inf"),
        }
        return per_second(flags, {"chat.turns_min": 1, "chat.turns_max": 1} | UNLIMITED_RPM)

    names = locals_by_name()
    rows = ((f"`{local}`", (rate(local, waiting) for waiting in WAITING)) for local in names)
    table("requests per CPU second", [f"{waiting:,} waiting" for waiting in WAITING], rows)


def ordering_pass():
    rows = ((f"`{local}`", (f"{ms:.3f}" for ms in pass_ms(local))) for local in locals_by_name())
    table("ms per pass", ["all 1,000 are new", "one is new, the tree has changed"], rows)


def pass_ms(local):
    """Return the CPU ms of the pass that orders 1,000 new requests, and the median of later passes.

    No pass admits a request.
    """
    scheduler, cache = build_local(local, UNLIMITED_RPM), KVCache(10**7)
    queue = WaitingQueue(cache, scheduler.cache_aware)
    numbers = iter(range(10**6))

    def arrive():
        number = next(numbers)
        # There are 50 documents, half of them cached. Each request has its own question.
        prompt = (Segment(f"doc-{number * 7 % 50}", 500), Segment(f"q-{number}", 60))
        request = Request(
            number, f"client-{number % 8}", number, 0, prompt, prompt_tokens(prompt), 256
        )
        scheduler.accepts(request, number / 100)
        scheduler.on_arrival(request, queue, number / 100)
        queue.enter(Sequence(request, Segment(f"o-{number}", 256), 0, lambda _: None))

    def one_pass():
        start_s = time.process_time()
        if not scheduler.cache_aware:
            queue.pass_unmatched()
        selection = scheduler.select(queue, 0.0)
        next(selection)
        selection.close()
        queue.end_pass()
        return 1000 * (time.process_time() - start_s)

    def store(key, tokens):
        cache.insert(cache.root, (Segment(key, tokens),), (0, 0), tokens)

    for document in range(25):
        store(f"doc-{document}", 500)
    for _ in range(1_000):
        arrive()
    first_ms, later_ms = one_pass(), []
    for number in range(PASSES):
        arrive()
        store(f"doc-{25 + number % 25}", 1 + number)
        later_ms.append(one_pass())
    return first_ms, median(later_ms)


def length():
    def row(tokens):
        flags = {"workload": "tot", "scenario": "none", "num_programs": 40, "request_rate": 1.0}
        yield per_second(flags, {"tot.output_tokens": tokens})

    rows = ((f"outputs of {tokens:,}", row(tokens)) for tokens in (16, 256, 4_096))
    table("tot", ["requests per CPU second"], rows)


def prompts():
    """Measure 9.6 million prompt tokens in every row. Cost must not grow with prompt length."""

    def row(folder, tokens):
        path = Path(folder) / f"{tokens}.csv"
        arrivals = range(9_600_000 // tokens)
        lines = [f"{120 * i / len(arrivals)},client-{i % 4},{tokens},100" for i in arrivals]
        path.write_text("\n".join(["arrived_at,client,input_tokens,output_tokens", *lines]))
        for engine in ("sglang", "vllm"):
            flags = {"trace": str(path), "engine": engine, "scheduler": "d2lpm", "dp": 8}
            spec = experiment(dict.fromkeys(RUN) | flags, {})
            start_s = time.process_time()
            simulate(spec)
            yield f"{time.process_time() - start_s:.2f}"

    with tempfile.TemporaryDirectory() as folder:
        sizes = (1_000, 4_000, 16_000)
        rows = ((f"{tokens:,} tokens", row(folder, tokens)) for tokens in sizes)
        table("prompts of", ["sglang, CPU s", "vllm, CPU s"], rows)


def scale():
    def row(duration_s):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            return fresh.submit(run_and_save, duration_s).result()

    rows = ((name, row(duration_s)) for name, duration_s in SCALES.items())
    columns = ["requests", "CPU, s", "requests per CPU second", "peak memory, MiB"]
    table("chat s1 fcfs, dp 4", columns, rows)


def run_and_save(duration_s):
    """Return requests, CPU seconds, their ratio, and the peak memory of this process."""
    spec = resolve(
        {
            "workload": "chat",
            "scenario": "s1",
            "scheduler": "fcfs",
            "dp": 4,
            "duration_s": float(duration_s),
        },
        {},
    )
    start_s = time.process_time()
    with tempfile.TemporaryDirectory() as parent, tempfile.TemporaryDirectory() as folder:
        result = simulate(spec, folder=Path(folder))
        save_run(Path(parent), spec, result.tables(), result.summary, {})
    seconds = time.process_time() - start_s
    requests = result.summary["num_requests"]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{requests:,}", f"{seconds:.1f}", f"{requests / seconds:,.0f}", f"{peak_mib:,.0f}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("cells", "queue", "pass", "length", "prompts", "scale"))
    parser.add_argument("--dp", type=int, nargs="+", default=[1, 4, 16, 64], help="for cells")
    parser.add_argument("--workload", nargs="+", default=workload_names(), help="for cells")
    parser.add_argument("--scheduler", nargs="+", default=list(PAIRS), help="for cells")
    arguments = parser.parse_args()
    # imports everything once
    measure({"workload": "chat", "scenario": "none", "num_programs": 1})
    if arguments.mode == "cells":
        cells(arguments.workload, arguments.scheduler, arguments.dp)
    else:
        modes = {"queue": queue, "pass": ordering_pass, "length": length, "prompts": prompts}
        (modes | {"scale": scale})[arguments.mode]()


if __name__ == "__main__":
    main()
