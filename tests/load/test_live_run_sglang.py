"""Test ``fairbench run --backend sglang`` on two real SGLang servers, a tiny model and no GPU."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fairbench_load.backends.sglang import PYTHON
from tests.load.live_cli import lines, only, running, tree, wait_until, wait_until_gone

SGLANG = os.environ.get(PYTHON)
MODEL = Path(SGLANG).parents[1] / "model" if SGLANG else Path()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SGLANG, reason=f"{PYTHON} names no Python with SGLang"),
]


@pytest.fixture(autouse=True)
def one_thread_a_server(monkeypatch):
    """Run each server with one thread. Two servers that use all cores slow each other tenfold."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


CPU = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --dtype float32 "
    "--disable-cuda-graph"
)
SERVERS = ["run", "--backend", "sglang", "--model", MODEL, "--load-format", "dummy"]
SERVERS += ["--server-arg", CPU, "--mem-fraction-static", "0.1", "--max-total-tokens", "8000"]
SERVERS += ["--max-running-requests", "8", "--dp", "2"]
# conversations of a few short turns, which all begin together
LOAD = ["--workload", "chat", "--scenario", "none", "--request-rate", "inf"]
for setting in ("think_mean_s=0.1", "output_tokens=8", "max_new_tokens=16", "turns_max=3"):
    LOAD += ["--set", f"chat.{setting}"]


def run(parent, *flags):
    with running(*SERVERS, *LOAD, "--num-programs", "4", *flags, "--result-dir", parent) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return stdout, only(parent)


def test_a_server_with_two_ranks(tmp_path, monkeypatch):
    """Both ranks must schedule alike, each with its own scheduler object, or they would hang."""
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|1")  # otherwise, a rank needs a NUMA node
    # torch.compile does not work with the stand-in for Triton
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    _, path = run(tmp_path, "--scheduler", "d2lpm", "--dp", "1", "--tp", "2")
    summary = json.loads((path / "summary.json").read_text())
    assert summary["completed"] == summary["num_requests"] >= 16
    assert summary["errors"] == {}
    assert "TP1" in (path / "live" / "worker-0.log").read_text()


def test_our_scheduler_and_router_on_real_servers(tmp_path):
    stdout, path = run(tmp_path, "--scheduler", "d2lpm")
    assert f"\nmeasured on sglang 0.5.23, {MODEL}, dp 2, scheduler d2lpm, seed 0" in stdout
    summary = json.loads((path / "summary.json").read_text())
    assert (summary["simulated"], summary["emulated"]) == (False, False)
    assert (summary["pool_tokens"], summary["timing_profile"]) == (8000, None)
    assert summary["completed"] == summary["num_requests"] >= 32
    assert summary["errors"] == {}
    requests = pq.read_table(path / "requests.parquet").to_pydict()
    assert set(requests["worker"]) == {0, 1}
    # Every turn except the first finds its conversation in the cache, wherever D2LPM keeps it.
    later = [
        cached
        for cached, depth in zip(requests["cached_tokens"], requests["depth"], strict=True)
        if depth > 0
    ]
    assert sum(cached > 0 for cached in later) > len(later) / 2


def test_sglangs_own_scheduling_is_measured_on_request(tmp_path):
    stdout, path = run(tmp_path, "--router", "round-robin", "--schedule-policy", "lpm")
    assert "\nmeasured on sglang 0.5.23 with its own lpm" in stdout
    summary = json.loads((path / "summary.json").read_text())
    assert summary["completed"] == summary["num_requests"]
    assert summary["scheduler"] == "lpm"


def test_no_process_of_sglang_outlives_a_killed_harness(tmp_path):
    flags = [*SERVERS, *LOAD, "--num-programs", "400", "--result-dir", tmp_path]
    with running(*flags) as process:
        records = "*/live/requests.jsonl"
        wait_until(lambda: any(lines(path) > 3 for path in tmp_path.glob(records)), process)
        started = tree(process.pid)
        process.kill()
        # Each server consists of a reaper, SGLang's main process, its scheduler and its
        # detokenizer. They are not found by their environment, which SGLang overwrites with the
        # names of its processes.
        assert len(started) > 2 * 4
        process.communicate()
        wait_until_gone(started)
