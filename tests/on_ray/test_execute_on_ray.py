"""Test tasks on two nodes of a real Ray cluster: results, failures, sent files, interruption.

``tests/on_ray/ray_failures.py`` tests nodes that die.
"""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from fairbench.config.sweep import make_sweep, points
from fairbench.errors import RunFailed, UsageError
from fairbench.execute.live_runs import NO_FLAGS
from fairbench.execute.repeats import run_sweep
from fairbench.execute.tasks import Failure, Interruption, LocalProcesses, RunContext, Saving
from fairbench.results.store import SweepStore
from fairbench_load import sent_files
from fairbench_ray.cluster import RayCluster
from tests.execute import pool_tasks
from tests.execute.same_sweep import results
from tests.on_ray.ray_cluster import cluster_of

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TRACE = "vtc_arena_trace.jsonl.gz"


@pytest.fixture(scope="module")
def address():
    with cluster_of(2) as cluster:
        yield cluster.address


def test_a_sweep_on_ray_equals_a_local_sweep_byte_for_byte(address, tmp_path):
    base = {"workload": "chat", "scenario": "none", "num_programs": 1}
    sweep = make_sweep({"name": "mine", "base": base, "grid": [{"scheduler": ["vtc", "fcfs"]}]})
    specs = points(sweep)
    outcomes = []
    for name, executor in (("here", LocalProcesses()), ("there", RayCluster(address))):
        store = SweepStore.create(tmp_path / name, sweep, specs)
        outcomes.append(run_sweep(store, specs, NO_FLAGS, RunContext(executor=executor)))
    here, there = (outcome.store.path for outcome in outcomes)
    assert len(results(here)) == 2 * 5 + 1  # and the runs of the clients alone
    assert results(here) == results(there)
    for name in ("metrics.csv", "clients.csv", "index.json"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert outcomes[0].comparison["cells"] == outcomes[1].comparison["cells"]


def test_a_failed_or_dead_task_does_not_affect_other_tasks(address, tmp_path):
    keep = Saving(pool_tasks.keep, tmp_path / "kept")
    tasks = [pool_tasks.refuse, pool_tasks.stumble, pool_tasks.die, keep]
    found = dict(RayCluster(address).run(tasks, Interruption()))
    refused, stumbled, died, kept = (found[index] for index in range(4))
    assert isinstance(refused, Failure)
    assert str(refused.error) == "dp = 0: must be above 0"
    assert isinstance(stumbled.error, RunFailed)
    assert "return 1 // 0" in stumbled.details
    assert str(died.error) == "its process died"
    assert kept != str(tmp_path / "kept"), "it saved elsewhere"
    found = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {Path("kept/run/table"), Path("kept/note")}


def test_an_interruption_stops_running_tasks_and_begins_no_others(address, tmp_path):
    interrupted = Interruption()
    marks = [tmp_path / f"{number}.mark" for number in range(4)]
    tasks = [partial(pool_tasks.double, 1)]
    tasks += [partial(pool_tasks.wait_for_the_end, mark) for mark in marks]
    found = {}
    for index, result in RayCluster(address).run(tasks, interrupted):
        found[index] = result
        if index == 0:
            pool_tasks.until(lambda: sum(mark.exists() for mark in marks) == 2)
            interrupted.signum = signal.SIGINT
    begun = [index for index, mark in enumerate(marks, start=1) if mark.exists()]
    assert found == {0: 2, **dict.fromkeys(begun, "stopped")}
    assert len(begun) == 2, "as many as there are processors"


def test_a_node_with_another_environment_is_refused(address, monkeypatch):
    other = {**sent_files.environment(), "numpy": "0.1"}
    monkeypatch.setattr(sent_files, "environment", lambda: other)
    with pytest.raises(
        UsageError,
        match=r"numpy is \d.* on node .*, but 0.1 on this machine; install the same version",
    ):
        list(RayCluster(address).run([partial(pool_tasks.double, 1)], Interruption()))


def test_a_missing_cluster_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"--ray-address 127\.0\.0\.1:9: "):
        list(RayCluster("127.0.0.1:9").run([partial(pool_tasks.double, 1)], Interruption()))


SCHEDULER = """
from fairbench.schedulers.local.fcfs import FCFS

class Mine(FCFS):
    name = "mine"
"""
PROGRAM = """
from fairbench.workloads.programs.single import Single

class Own(Single):
    kind = "own"
"""
COST = "def cost(input_tokens, output_tokens):\n    return input_tokens + 3 * output_tokens\n"
SWEEP = """
[base]
num_programs = 2
[grid]
scheduler = ["round-robin+mine", "round-robin+vtc-predict"]
workload = ["recorded.toml", "own.toml"]
vtc-predict.cost = ["own/cost.py"]
"""


def test_the_files_of_a_user_reach_the_nodes(address, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(SCHEDULER)
    (tmp_path / "own" / "cost.py").write_text(COST)
    requests = [{"t": n, "client": n % 2, "prompt_len": 20, "output_len": 4} for n in range(99)]
    (tmp_path / "own" / "trace.jsonl").write_text("\n".join(map(json.dumps, requests)))
    workload = (ROOT / "workloads" / "vtc-arena.toml").read_text()
    (tmp_path / "recorded.toml").write_text(workload.replace(TRACE, "own/trace.jsonl"))
    single = (ROOT / "workloads" / "vtc-overload.toml").read_text()
    (tmp_path / "own.toml").write_text(single.replace('"single"', '"own"'))
    (tmp_path / "own" / "program.py").write_text(PROGRAM)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    variables = {**os.environ, "FAIRBENCH_SCHEDULERS": "own/mine.py", "FAIRBENCH_DATA": ""}
    variables["FAIRBENCH_PROGRAMS"] = "own/program.py"
    runs = []
    for where in (["local"], ["ray", "--ray-address", address]):
        words = ["sweep", "sweep.toml", "--name", where[0], "--executor", *where, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "fairbench", *words],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        runs.append(results(tmp_path / "results" / "runs" / where[0]))
    assert len(runs[0]) == 2 * (2 * 5 + 1)
    assert runs[0] == runs[1]
