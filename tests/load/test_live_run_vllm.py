"""Test ``fairbench run --backend vllm`` on two real vLLM servers, a tiny model and no GPU.

Run in the environment of tests/vllm_cpu/install.sh; each test takes minutes.
"""

import os
import signal

import pyarrow.parquet as pq
import pytest

from fairbench_load.server_facts import get_text
from tests.load.live_cli import (
    WAIT_S,
    only,
    running,
    runs,
    summary,
    tree,
    under_way,
    wait_until,
    wait_until_gone,
)
from tests.load.live_vllm import (
    MODEL,
    SERVERS,
    SMALL,
    WHY_ABSENT,
    command_of,
    engine_cores,
    samples,
)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_ABSENT), reason=WHY_ABSENT)]


@pytest.fixture(autouse=True)
def small_servers(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setenv(name, value)


RUN = ["run", *SERVERS, "--max-running-requests", "4"]
# Conversations of a few short turns. Either a few run together, or they are so slow that servers on
# shared cores keep up, for longer than any test.
LOAD = ["--workload", "chat", "--scenario", "none"]
for setting in ("think_mean_s=0.1", "output_tokens=8", "max_new_tokens=16", "turns_max=3"):
    LOAD += ["--set", f"chat.{setting}"]
SHORT = [*RUN, *LOAD, "--request-rate", "inf", "--num-programs", "4"]
LONG = [*RUN, *LOAD, "--request-rate", "0.1", "--duration", "7200"]


def router_metrics(process):
    """Return the current counts of the run's own router, by name and labels."""
    commands = [command_of(pid) for pid in tree(process.pid)]
    (serve,) = [one for one in commands if one[1:4] == ["-m", "fairbench", "serve"]]
    url = f"http://127.0.0.1:{serve[serve.index('--port') + 1]}/metrics"
    return samples(get_text(url, timeout_s=WAIT_S))


@pytest.mark.parametrize("scheduler", ["fcfs", "vtc", "dlpm", "d2lpm"])
def test_our_scheduler_and_router_on_real_servers(tmp_path, scheduler):
    with running(*SHORT, "--scheduler", scheduler, "--result-dir", tmp_path) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout.startswith(f"measured on vllm 0.32.0, {MODEL}, dp 2, scheduler {scheduler}")
    path = only(tmp_path)
    found = summary(path)
    assert (found["simulated"], found["emulated"], found["complete"]) == (False, False, True)
    assert found["pool_tokens"] == 499 * 32
    assert found["completed"] == found["num_requests"] >= 16
    assert found["errors"] == {}
    requests = pq.read_table(path / "requests.parquet").to_pydict()
    assert len(requests["worker"]) == found["num_requests"]
    assert set(requests["worker"]) == {0, 1}


def test_the_router_follows_the_servers_caches(tmp_path):
    """If the router is interrupted, its records still end in a consistent state."""
    with running(*LONG, "--scheduler", "d2lpm", "--result-dir", tmp_path) as process:
        path = under_way(process, tmp_path)
        started = tree(process.pid)
        assert len(engine_cores(process)) == 2

        def hits():
            told = router_metrics(process)
            return sum(n for name, n in told.items() if name.startswith("fairbench_cached_tokens"))

        wait_until(lambda: hits() > 0, process)
        told = router_metrics(process)
        for worker in (0, 1):
            assert told[f'fairbench_kv_events_followed{{worker="{worker}"}}'] == 1
            assert told[f'fairbench_kv_event_losses{{worker="{worker}"}}'] == 0
            assert told[f'fairbench_kv_event_unreadable{{worker="{worker}"}}'] == 0
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == "fairbench: interrupted; the finished requests are saved\n"
    assert "INCOMPLETE" in stdout
    wait_until_gone(started)
    assert summary(path)["complete"] is False
    requests = pq.read_table(path / "requests.parquet").to_pydict()
    assert requests["status"].count("finished") == summary(path)["completed"] > 3
    assert sum(requests["cached_tokens"]) > 0


def test_a_server_that_dies_is_restarted(tmp_path):
    with running(*LONG, "--scheduler", "d2lpm", "--result-dir", tmp_path) as process:
        path = under_way(process, tmp_path)
        started, killed = tree(process.pid), engine_cores(process)[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not runs(killed) and len(engine_cores(process)) == 1, process)
        wait_until(lambda: len(engine_cores(process)) == 2, process)
        wait_until(lambda: both_up(process), process)
        started += tree(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate()
    wait_until_gone(started)
    found = summary(path)
    assert "ended during the run" in found["notes"]["workers"]
    assert found["completed"] > 3


def both_up(process):
    told = router_metrics(process)
    return all(told[f'fairbench_worker_up{{worker="{worker}"}}'] == 1 for worker in (0, 1))


def test_no_process_of_vllm_outlives_a_killed_harness(tmp_path):
    with running(*LONG, "--result-dir", tmp_path) as process:
        under_way(process, tmp_path)
        started = tree(process.pid)
        process.kill()
        process.communicate()
        wait_until_gone(started)
