"""A real vLLM server on the CPU with the tiny model, started and stopped by a test."""

import contextlib
import os
import subprocess
import time
import urllib.request
from pathlib import Path

from fairbench_load.backends.vllm import PYTHON
from fairbench_load.processes.addresses import free_ports

VLLM = os.environ.get(PYTHON)
MODEL = Path(VLLM).parents[1] / "model" if VLLM else Path()
WHY_ABSENT = "" if VLLM else f"{PYTHON} names no Python with vLLM (tests/vllm_cpu/install.sh)"
READY_S = 900  # long, because the machine may be busy
# Each server has one thread and one GiB, on whatever core is free.
ALWAYS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
CPU_FLAGS = ("--load-format=dummy", "--dtype=float32", "--enforce-eager", "--block-size=32")
CPU_FLAGS += ("--num-gpu-blocks-override=500", "--max-model-len=4096")


@contextlib.contextmanager
def stock_vllm(folder, *flags, environment=None, module="vllm.entrypoints.openai.api_server"):
    """Yield the URL of a ready server. Its processes are gone afterwards, whatever happens."""
    (port,) = free_ports(1)
    url, log = f"http://127.0.0.1:{port}", folder / "server.log"
    command = [VLLM, "-m", module, "--model", MODEL]
    command += ["--served-model-name=m", "--host=127.0.0.1", f"--port={port}", *CPU_FLAGS, *flags]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | ALWAYS | (environment or {}),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_ready(process, url, log)
        yield url
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _wait_until_ready(process, url, log):
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
            return
        time.sleep(0.5)
    raise AssertionError(f"no server after {READY_S} s: ... {log.read_text()[-3000:]}")
