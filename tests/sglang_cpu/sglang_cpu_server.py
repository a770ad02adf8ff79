"""A real SGLang server on the CPU with the tiny model, started and stopped by a test."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from fairbench_load.processes.addresses import free_ports
from tests.sglang_cpu.tiny_model import write_model

PYTHON = os.environ.get("FAIRBENCH_SGLANG_PYTHON", sys.executable)
READY_S = 600  # long, because the machine may be busy
CPU_FLAGS = (
    "--load-format=dummy",
    "--device=cpu",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--dtype=float32",
    "--disable-cuda-graph",
    "--mem-fraction-static=0.1",
    "--enable-metrics",
    "--enable-cache-report",
)
ALWAYS = {
    "OMP_NUM_THREADS": "1",
    "SGLANG_CPU_FORK": "1",  # tests/load starts servers without it, as users do
    # otherwise, asking for /health makes a request that would count among a test's requests
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
}


def why_absent():
    """Return why no server can be started, or "" if one can."""
    if "FAIRBENCH_SGLANG_PYTHON" in os.environ:
        return "" if Path(PYTHON).exists() else f"FAIRBENCH_SGLANG_PYTHON: {PYTHON} does not exist"
    if importlib.util.find_spec("sglang_cpu_stubs") and importlib.util.find_spec("sglang"):
        return ""
    return "no SGLang for the CPU here (tests/sglang_cpu/install.sh)"


@dataclass
class Server:
    """A server's address, process group and log.

    It also has the number of calls of stand-ins before the server was ready.
    """

    url: str
    group: int
    log: Path
    stub_calls: Path
    calls_before: int

    def calls_while_serving(self):
        return _lines(self.stub_calls) - self.calls_before

    def flush(self):
        """Empty the cache, once the server reports that it is idle."""
        flush = f"{self.url}/flush_cache?timeout={READY_S}"
        urllib.request.urlopen(flush, data=b"").close()


class PortTakenError(Exception):
    """Another process has bound the port that was free when the server was started."""


@contextlib.contextmanager
def sglang_server(folder, *flags, environment=None):
    """Yield a ready server. Its processes are gone afterwards, whatever happens."""
    write_model(folder / "model")
    with contextlib.ExitStack() as stack:
        for attempt in range(3):
            try:
                server = stack.enter_context(_started(folder, flags, environment or {}))
                break
            except PortTakenError:
                if attempt == 2:
                    raise
        yield server


@contextlib.contextmanager
def _started(folder, flags, environment):
    """Yield a server at a free port. Raises PortTakenError if the port is taken meanwhile."""
    (port,) = free_ports(1)
    url, log, calls = f"http://127.0.0.1:{port}", folder / "server.log", folder / "stub_calls"
    command = [PYTHON, "-m", "sglang.launch_server", "--model-path", folder / "model"]
    command += ["--host=127.0.0.1", f"--port={port}", *CPU_FLAGS, *flags]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FAIRBENCH_")}
    settings = ALWAYS | {"SGLANG_CPU_STUB_CALLS": str(calls)} | environment
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=inherited | settings,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, url, log)
        yield Server(url, process.pid, log, calls, _lines(calls))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(process, url, log):
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=10):
            return
        # SGLang's other processes go on for minutes without a port.
        if "address already in use" in log.read_text(errors="replace"):
            raise PortTakenError(url)
        time.sleep(0.5)
    raise AssertionError(f"no server after {READY_S} s: ... {log.read_text()[-3000:]}")


def _lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0
