"""Test a lost Ray head: finished tasks are kept, and each other task is started once more."""

import signal
from functools import partial

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.tasks import Interruption, start_child
from fairbench_ray import cluster
from tests.execute import pool_tasks
from tests.on_ray import fake_bridge


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run five tasks with a bridge that follows a script. Return results and the tasks it did."""
    monkeypatch.setattr(cluster, "serve_tasks", fake_bridge.serve)
    monkeypatch.setattr(cluster, "find_spec", lambda name: name)  # pretends that Ray is installed

    def run(script):
        (tmp_path / "script").write_text(script)
        tasks = [partial(pool_tasks.double, number) for number in range(5)]
        executor = cluster.RayCluster(str(tmp_path / "script"))
        found = list(executor.run(tasks, Interruption()))
        return found, [int(line) for line in (tmp_path / "script.done").read_text().split()]

    return run


# Each letter costs a process, so the fast tests use short scripts.
LONG = [pytest.param(script, marks=pytest.mark.slow) for script in ("x-x--", "xdxd", "xxxxx")]


@pytest.mark.slow
@pytest.mark.parametrize("script", [".", "x-", *LONG])
def test_no_task_is_lost_and_no_task_runs_twice(run, script):
    found, done = run(script)
    assert found == [(number, 2 * number) for number in range(5)]
    assert done == list(range(5))


def test_a_cluster_that_never_existed_is_a_user_error(run):
    with pytest.raises(UsageError, match=r"^--ray-address .*/script: nobody is there$"):
        run("-")


def test_a_node_that_dies_during_connection_counts_as_lost():
    """Such a death once ended in a traceback."""
    child = start_child(fake_bridge.serve_forgotten)
    with pytest.raises(EOFError):
        child.pipe.recv()
    child.process.join()
    assert child.process.exitcode == -signal.SIGKILL


@pytest.mark.slow
def test_a_cluster_that_does_not_come_back_ends_the_run(run, tmp_path, monkeypatch):
    with pytest.raises(RunFailed, match="was lost; the finished runs are kept"):
        run("xdddd")
    assert (tmp_path / "script.done").read_text() == "0\n"
    monkeypatch.setattr(cluster, "PATIENCE_S", -1.0)
    with pytest.raises(RunFailed, match="was lost"):
        run("x-")
