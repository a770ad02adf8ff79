"""Measure the cost of a router: tests/benchmarks/live_router.py [--requests 2000] [--gap-ms 1]

A client sends streams to four null workers that answer immediately: directly (in rotation), through
``fairbench serve``, and through sglang-router, in turn, over several rounds. CPU is the time of the
router's process per request in the cheapest round. Requests/s is the highest rate. Latency is
measured with one request at a time, and the added latency is the difference of two percentiles.
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from urllib.request import urlopen

import psutil

NULL_SERVER = Path(__file__).parents[1] / "live" / "live_null_server.py"
WORKERS = 4
ROUNDS = 3
PROMPT = list(range(512))
OUTPUT_TOKENS = 16


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_health(url: str) -> None:
    for _ in range(200):
        try:
            with urlopen(f"{url}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not become healthy")


def cpu_s(process: subprocess.Popen) -> float:
    """Return the CPU time of a process and its children."""
    root = psutil.Process(process.pid)
    times = [one.cpu_times() for one in (root, *root.children(recursive=True))]
    return sum(t.user + t.system for t in times)


async def ask(connection, path: str, body: bytes) -> float:
    """Send one request on a kept-alive connection. Return how many seconds it took."""
    reader, writer = connection
    start = time.perf_counter()
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"x-fairbench-client: a\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
    answer = await reader.readuntil(b"\r\n0\r\n\r\n")
    if b" 200 OK" not in answer[:20] or b"[DONE]" not in answer[-40:]:
        raise SystemExit(f"not a whole stream: {answer[:200]!r}")
    return time.perf_counter() - start


async def load(urls: list[str], path: str, body: bytes, requests: int, at_once: int) -> list[float]:
    """Return the latencies of ``requests`` requests, of which ``at_once`` are always in flight."""
    left, latencies, targets = iter(range(requests)), [], cycle(urls)

    async def client(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        connection = await asyncio.open_connection(host, int(port), limit=1 << 20)
        latencies.extend([await ask(connection, path, body) for _ in left])
        connection[1].close()

    await asyncio.gather(*(client(next(targets)) for _ in range(at_once)))
    return latencies


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def measure(urls: list[str], process, path: str, body: bytes, requests: int) -> dict:
    asyncio.run(load(urls, path, body, 200, 8))  # warm up connections and caches
    before, start = cpu_s(process) if process else 0.0, time.perf_counter()
    asyncio.run(load(urls, path, body, requests, 32))
    wall = time.perf_counter() - start
    used = cpu_s(process) - before if process else 0.0
    alone = asyncio.run(load(urls, path, body, 400, 1))
    return {
        "rate": requests / wall,
        "cpu_ms": 1000 * used / requests,
        "p50_ms": 1000 * percentile(alone, 50),
        "p99_ms": 1000 * percentile(alone, 99),
    }


def best(rounds: list[dict]) -> dict:
    return {key: (max if key == "rate" else min)(r[key] for r in rounds) for key in rounds[0]}


def body_of(path: str) -> bytes:
    if path == "/generate":
        params = {"max_new_tokens": OUTPUT_TOKENS, "min_new_tokens": OUTPUT_TOKENS}
        return json.dumps({"input_ids": PROMPT, "sampling_params": params, "stream": True}).encode()
    prompt = " ".join(f"w{token}" for token in PROMPT)
    return json.dumps(
        {"model": "null", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}
    ).encode()


def commands(urls: list[str], scheduler: str, policy: str) -> dict[str, tuple[str, list[str]]]:
    ours, theirs = free_port(), free_port()
    serve = [sys.executable, "-m", "fairbench", "serve", "--scheduler", scheduler]
    serve += ["--no-client-limit"]
    for url in urls:
        serve += ["--worker-url", url]
    smg = [sys.executable, "-m", "sglang_router.launch_router", "--worker-urls", *urls]
    smg += ["--host", "127.0.0.1", "--port", str(theirs), "--policy", policy]
    smg += ["--log-level", "error", "--prometheus-port", str(free_port())]
    return {
        "fairbench serve": (f"http://127.0.0.1:{ours}", [*serve, "--port", str(ours)]),
        "sglang-router": (f"http://127.0.0.1:{theirs}", smg),
    }


def report(found: dict[str, dict]) -> None:
    direct, theirs = found["direct"], found["sglang-router"]
    print(
        "| | requests/s | CPU ms/request | of sglang-router's | P50 ms | added | P99 ms | added |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name, row in found.items():
        print(
            f"| {name} | {row['rate']:,.0f} | {row['cpu_ms']:.2f} | "
            f"{row['cpu_ms'] / theirs['cpu_ms']:.2f} | "
            f"{row['p50_ms']:.2f} | {row['p50_ms'] - direct['p50_ms']:.2f} | "
            f"{row['p99_ms']:.2f} | {row['p99_ms'] - direct['p99_ms']:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--gap-ms", type=float, default=0.0, help="between two chunks")
    parser.add_argument("--path", default="/generate")
    parser.add_argument("--scheduler", default="d2lpm")
    parser.add_argument("--policy", default="cache_aware", help="sglang-router's")
    given = parser.parse_args()
    workers = [sys.executable, str(NULL_SERVER), "--chunks", str(given.chunks)]
    workers += ["--gap-ms", str(given.gap_ms)]
    with running(workers) as a, running(workers) as b, running(workers) as c, running(workers) as d:
        urls = [worker.stdout.readline().strip() for worker in (a, b, c, d)]
        contenders = commands(urls, given.scheduler, given.policy)
        (our_url, ours), (their_url, theirs) = contenders.values()
        with running(ours) as our_process, running(theirs) as their_process:
            await_health(our_url)
            await_health(their_url)
            sides = {
                "direct": (urls, None),
                "fairbench serve": ([our_url], our_process),
                "sglang-router": ([their_url], their_process),
            }
            rounds: dict[str, list[dict]] = {name: [] for name in sides}
            for _ in range(ROUNDS):
                for name, (targets, process) in sides.items():
                    rounds[name].append(
                        measure(targets, process, given.path, body_of(given.path), given.requests)
                    )
    report({name: best(of_side) for name, of_side in rounds.items()})


if __name__ == "__main__":
    main()
