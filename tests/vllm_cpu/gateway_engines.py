"""What a gateway costs a real engine on a CPU: starts server and gateway, then gateway_cost.py.

    FAIRBENCH_VLLM_PYTHON=DIR/bin/python python gateway_engines.py vllm [PAIRS [SECONDS [OUTPUT]]]
    FAIRBENCH_SGLANG_PYTHON=DIR/bin/python python gateway_engines.py sglang ...

Stock servers of four slots; `--gateway vtc`, as many at a worker at once. Needs the paths of
``pyproject.toml``'s ``pythonpath``.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import gateway_cost
import psutil
from sglang_cpu_server import sglang_server
from vllm_cpu_server import stock_vllm

AT_ONCE = 4


@contextlib.contextmanager
def served(engine, folder):
    """The URL of a stock server."""
    if engine == "vllm":
        with stock_vllm(folder, f"--max-num-seqs={AT_ONCE}") as url:
            yield url
    else:
        flags = f"--max-running-requests={AT_ONCE}", "--max-total-tokens=8000"
        flags += ("--decode-log-interval=1",)  # tokens are counted as often
        with sglang_server(folder, *flags) as server:
            yield server.url


def who_listens(url):
    """The process that was started for it, and lasts."""
    port = url.rpartition(":")[2]
    mine = psutil.Process().children()
    return next(one.pid for one in mine if f"--port={port}" in one.cmdline())


@contextlib.contextmanager
def gateway_before(url, policy="vtc"):
    """The URL of ``fairbench serve``."""
    command = [sys.executable, "-m", "fairbench", "serve", "--port", "0", "--worker-url", url]
    command += ["--gateway", policy, "--router", "least-loaded"]
    command += ["--max-inflight-per-worker", str(AT_ONCE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def main(engine, pairs=20, seconds=15, output=64):
    with tempfile.TemporaryDirectory() as name, served(engine, Path(name)) as url:
        pid = who_listens(url)
        with gateway_before(url) as gateway:
            asyncio.run(
                gateway_cost.main(url, gateway, pid, int(pairs), float(seconds), int(output))
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
