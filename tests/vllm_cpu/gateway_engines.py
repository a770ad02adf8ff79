"""Measure a gateway's cost on a real CPU engine: start both servers, then gateway_cost.py.

    FAIRBENCH_VLLM_PYTHON=DIR/bin/python python -m tests.vllm_cpu.gateway_engines vllm \
        [PAIRS [SECONDS [OUTPUT [SPREAD]]]] [-- FLAG...]
    FAIRBENCH_SGLANG_PYTHON=DIR/bin/python python -m tests.vllm_cpu.gateway_engines sglang ...

Stock servers of four slots, vLLM's in its development mode, where it says so; `--gateway vtc`, as
many at a worker as `auto` sends, unless other flags of `serve` are given.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
from aiohttp import ClientSession

from fairbench_load.processes.addresses import WorkerAddress
from fairbench_serve.worker_info import most_running
from tests.sglang_cpu.sglang_cpu_server import sglang_server
from tests.vllm_cpu import gateway_cost
from tests.vllm_cpu.vllm_cpu_server import stock_vllm

AT_ONCE = 4
DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1"}


@contextlib.contextmanager
def served(engine, folder):
    """Start a stock server. Yield its URL."""
    if engine == "vllm":
        with stock_vllm(folder, f"--max-num-seqs={AT_ONCE}", environment=DEVELOPMENT) as url:
            for _ in range(20):  # the first time, it examines its whole machine
                if asyncio.run(most_at(url)) is not None:
                    break
            yield url
    else:
        flags = f"--max-running-requests={AT_ONCE}", "--max-total-tokens=8000"
        flags += ("--decode-log-interval=1",)  # seconds between counts of tokens
        with sglang_server(folder, *flags) as server:
            yield server.url


async def most_at(url):
    """Return the running limit that a server reports."""
    async with ClientSession() as session:
        return await most_running(session, [WorkerAddress(url)])


def who_listens(url):
    """Return the process that listens there, among those started for the server."""
    port = url.rpartition(":")[2]
    mine = psutil.Process().children()
    return next(one.pid for one in mine if f"--port={port}" in one.cmdline())


@contextlib.contextmanager
def gateway_before(url, flags):
    """Run ``fairbench serve``. Yield its URL."""
    command = [sys.executable, "-m", "fairbench", "serve", "--port", "0", "--worker-url", url]
    command += ["--no-client-limit"]  # the gateway process alone
    command += ["--router", "least-loaded", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main(engine, *arguments):
    at = arguments.index("--") if "--" in arguments else len(arguments)
    flags = arguments[at + 1 :] or ("--gateway", "vtc")
    pairs, seconds, *answers = [*arguments[:at], *("20", "15", "64")[at:]]
    with tempfile.TemporaryDirectory() as name, served(engine, Path(name)) as url:
        pid = who_listens(url)
        with gateway_before(url, flags) as gateway:
            much = int(pairs), float(seconds), *map(int, answers)
            asyncio.run(gateway_cost.main(url, gateway, pid, *much))


if __name__ == "__main__":
    main(*sys.argv[1:])
