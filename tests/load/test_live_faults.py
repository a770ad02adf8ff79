"""Test eight emulated workers and fifty clients when one worker dies and another stalls."""

import json
import signal
import urllib.request
from collections import Counter

import pytest

from fairbench.config.resolve import resolve
from tests.load.live_cluster import emulated_cluster, run_emulated

DEAD, STALLED = 3, 5
KILL_S, STALL_S, RESUME_S = 6.0, 8.0, 11.0
SETTLED_S = 13.0  # by then, the router has noticed


class Saboteur:
    """A saboteur that does each harm once, at its time in the run."""

    def __init__(self, workers):
        stall, resume = signal.SIGSTOP, signal.SIGCONT
        self.plan = [
            (KILL_S, workers[DEAD].process.kill),
            (STALL_S, lambda: workers[STALLED].process.send_signal(stall)),
            (RESUME_S, lambda: workers[STALLED].process.send_signal(resume)),
        ]

    def __call__(self, progress):
        while self.plan and progress.now_s >= self.plan[0][0]:
            self.plan.pop(0)[1]()


def get_json(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.alone
def test_a_dead_and_a_stalled_worker_cost_only_the_requests_of_the_dead_one(tmp_path):
    spec = resolve(
        {
            "workload": "chat",
            "scheduler": "d2lpm",
            "dp": 8,
            "clients": 50,
            "duration_s": 20.0,
            "request_rate": 0.25,
        },
        {"chat.think_mean_s": 2.0},
    )
    with emulated_cluster(spec, stream_interval=64) as (workers, router):
        saboteur = Saboteur(workers)
        records, _ = run_emulated(spec, tmp_path, router, on_progress=saboteur)
        assert saboteur.plan == []
        survivors = {n: w.address.split(",")[0] for n, w in enumerate(workers) if n != DEAD}
        counters = {
            n: get_json(f"{url}/server_info")["fairbench"]["counters"]
            for n, url in survivors.items()
        }
        with urllib.request.urlopen(f"{router.address}/health", timeout=300) as answer:
            assert answer.status == 200
    requests = records.requests
    failed = [record for record in requests if record.status != "finished"]
    assert {record.worker for record in failed} <= {DEAD, -1}
    assert not [record for record in failed if record.arrival_s > SETTLED_S]
    assert len({record.client for record in requests if record.arrival_s > SETTLED_S}) > 40
    # Every request that a worker finished is recorded once.
    finished = Counter(r.worker for r in requests if r.status == "finished")
    assert {n: finished[n] for n in survivors} == {n: c["finished"] for n, c in counters.items()}
    assert finished[DEAD] > 0
    assert not [r for r in requests if r.worker == DEAD and r.arrival_s > SETTLED_S]
