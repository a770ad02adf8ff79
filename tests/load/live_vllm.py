"""Real vLLM servers on the CPU with the tiny model, started as fairbench starts them."""

import os
from pathlib import Path

from fairbench_load.backends.vllm import PYTHON
from tests.load.live_cli import tree

VLLM = os.environ.get(PYTHON)
MODEL = Path(VLLM).parents[1] / "model" if VLLM else Path()
WHY_ABSENT = "" if VLLM else f"{PYTHON} names no Python with vLLM (tests/vllm_cpu/install.sh)"
# Each server gets one thread and one GiB, so that servers do not compete for cores and memory.
SMALL = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
CPU = "--dtype float32 --enforce-eager --block-size 32 --max-model-len 4096"
SERVERS = ["--backend", "vllm", "--model", MODEL, "--load-format", "dummy", "--dp", "2"]
SERVERS += ["--server-arg", f"{CPU} --num-gpu-blocks-override 500"]
SERVERS += ["--ready-check-timeout-sec", "900"]


def command_of(pid):
    """Return the command line of a process, or "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def engine_cores(process):
    """Return the engine core processes behind each API server."""
    return [pid for pid in tree(process.pid) if "EngineCore" in " ".join(command_of(pid))]


def samples(page):
    """Return the samples on a page of metrics, by name and labels."""
    lines = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}
