"""Benchmark the driver on a null server: tests/benchmarks/live_driver.py [--sglang-python PYTHON]

A server without a model answers requests with 256 tokens in 16 chunks, 5 ms apart, in another
process. Prints a Markdown table: CPU time per request, lateness of the sends, and requests per
second. Given the Python of an SGLang installation, SGLang's ``bench_serving`` sends the same load
for comparison.
"""

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NULL_SERVER = Path(__file__).parents[1] / "live" / "live_null_server.py"
INPUT_TOKENS, OUTPUT_TOKENS, CHUNKS, GAP_MS = 256, 16, 16, 5
SECONDS = 10  # seconds of load at a given rate
# number of requests without a rate limit, and how many may be in flight
AT_ONCE, CONCURRENCY = 5_000, 256

SGLANG = """
import json, sys, time, types
datasets = types.ModuleType("datasets")  # only for image data sets
datasets.load_dataset = None
sys.modules.setdefault("datasets", datasets)
import sglang.benchmark.serving as serving
start, end = [], []
benchmark, metrics = serving.benchmark, serving.calculate_metrics
async def timed_benchmark(*args, **kwargs):
    start.append((time.process_time(), time.perf_counter()))
    return await benchmark(*args, **kwargs)
def timed_metrics(*args, **kwargs):
    end.append((time.process_time(), time.perf_counter()))
    return metrics(*args, **kwargs)
serving.benchmark, serving.calculate_metrics = timed_benchmark, timed_metrics
serving.cli_main()
print(json.dumps([e - s for s, e in zip(start[0], end[0])]))
"""


def ours(url: str, rate: float, requests: int) -> None:
    """Print CPU ms per request, lateness P50 and P99 in ms, and requests/s as JSON."""
    import numpy as np

    from fairbench.config.resolve import resolve
    from fairbench_load.driver.drive import drive
    from fairbench_load.driver.target import DriverTarget
    from fairbench_load.records import read_records
    from fairbench_load.summary import lateness_ms

    one_call = {
        "turns_min": 1,
        "turns_max": 1,
        "user_tokens": INPUT_TOKENS,
        "user_sigma": 0.0,
        "output_tokens": OUTPUT_TOKENS,
        "output_sigma": 0.0,
        "max_new_tokens": OUTPUT_TOKENS,
    }
    flags = {
        "workload": "chat",
        "scenario": "none",
        "clients": 1,
        "request_rate": rate,
        "num_programs": requests,
        "scheduler": "fcfs",
    }
    spec = resolve(flags, {f"chat.{name}": value for name, value in one_call.items()})
    cap = CONCURRENCY if rate == float("inf") else None
    target = DriverTarget(url, max_concurrency=cap)
    with tempfile.TemporaryDirectory() as folder:
        cpu_s = time.process_time()
        result = asyncio.run(drive(spec, target, Path(folder), vocab=range(16, 32_000)))
        cpu_s = time.process_time() - cpu_s
        records = read_records(Path(folder)).requests
    assert [record.status for record in records] == ["finished"] * requests
    p50_ms, p99_ms = np.percentile(lateness_ms(records), [50, 99]).tolist()
    print(
        json.dumps(
            {
                "cpu_ms": 1000 * cpu_s / requests,
                "p50_ms": p50_ms,
                "p99_ms": p99_ms,
                "rate": requests / result.end_s,
            }
        )
    )


def measure_ours(url: str, rate: float, requests: int) -> dict[str, float]:
    """Run ``ours`` in another process."""
    command = [sys.executable, __file__, "--url", url, "--rate", str(rate), "-n", str(requests)]
    return json.loads(subprocess.check_output(command))


def measure_sglang(python: str, url: str, rate: float, requests: int, tokenizer: str):
    """Return the CPU ms per request and the requests/s of ``bench_serving`` under the same load."""
    arguments = (
        f"--backend sglang --base-url {url} --dataset-name random-ids --num-prompts {requests} "
        f"--random-input-len {INPUT_TOKENS} --random-output-len {OUTPUT_TOKENS} "
        f"--random-range-ratio 1 --tokenize-prompt --request-rate {rate} --model {tokenizer} "
        f"--tokenizer {tokenizer} --disable-tqdm --warmup-requests 0"
    ).split()
    if rate == float("inf"):
        arguments += ["--max-concurrency", str(CONCURRENCY)]
    with tempfile.TemporaryDirectory() as folder:  # the engine writes its results here
        command = [python, "-c", SGLANG, *arguments]
        output = subprocess.check_output(command, cwd=folder, stderr=subprocess.DEVNULL)
    cpu_s, wall_s = json.loads(output.splitlines()[-1])
    return {"cpu_ms": 1000 * cpu_s / requests, "rate": requests / wall_s}


@contextlib.contextmanager
def null_server():
    """Start a null server in another process; yield its URL."""
    command = [sys.executable, str(NULL_SERVER), "--chunks", str(CHUNKS), "--gap-ms", str(GAP_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def report(python: str | None, tokenizer: str | None) -> None:
    """Measure at every rate and print the table."""
    print("| rate, /s | driver | CPU per request, ms | lateness P50, ms | P99, ms | sent, /s |")
    print("|--:|---|--:|--:|--:|--:|")
    with null_server() as url:
        for rate in (100.0, 500.0, float("inf")):
            requests = AT_ONCE if rate == float("inf") else round(rate * SECONDS)
            own = measure_ours(url, rate, requests)
            late = f"{own['p50_ms']:.2f} | {own['p99_ms']:.2f}" if rate < float("inf") else "- | -"
            print(f"| {rate:g} | fairbench | {own['cpu_ms']:.3f} | {late} | {own['rate']:,.0f} |")
            if python and tokenizer:
                other = measure_sglang(python, url, rate, requests, tokenizer)
                cpu_ms, reached = other["cpu_ms"], other["rate"]
                print(f"| {rate:g} | bench_serving | {cpu_ms:.3f} | | | {reached:,.0f} |")
                print(f"| {rate:g} | *ratio* | {own['cpu_ms'] / cpu_ms:.2f} | | | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang-python", help="a Python that has sglang, to compare with")
    parser.add_argument("--tokenizer", help="folder of a tokenizer, which bench_serving needs")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("-n", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url:
        ours(given.url, given.rate, given.n)
    else:
        report(given.sglang_python, given.tokenizer)


if __name__ == "__main__":
    main()
