"""Test processes that run tasks: results, crashes, interruption, and the death of their parent."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench.execute import tasks as pool
from fairbench.execute.tasks import Failure, Interruption, LocalProcesses, start_child
from tests.execute import pool_tasks

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300  # long, because the machine may be busy


def results(tasks, interrupted=None):
    found = dict(LocalProcesses().run(tasks, interrupted or Interruption()))
    assert multiprocessing.active_children() == []
    return [found[index] for index in range(len(tasks))]


def until(condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_task_has_its_result():
    assert results([partial(pool_tasks.double, n) for n in range(20)]) == list(range(0, 40, 2))


def test_without_tasks_no_process_is_started():
    assert results([]) == []


def test_there_are_no_more_processes_than_processors(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    tasks = [partial(pool_tasks.noted, tmp_path, n) for n in range(4)]
    begun = [index for index, _ in LocalProcesses().run(tasks, Interruption())]
    assert begun == [0, 1, 2, 3]
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 1


def test_a_failed_or_dead_task_does_not_affect_other_tasks():
    tasks = [pool_tasks.refuse, pool_tasks.stumble, pool_tasks.die, partial(pool_tasks.double, 4)]
    refused, stumbled, died, done = results(tasks)
    assert done == 8
    assert isinstance(refused, Failure)
    assert isinstance(refused.error, UsageError)
    assert str(refused.error) == "dp = 0: must be above 0"
    assert isinstance(stumbled.error, RunFailed)
    assert str(stumbled.error).startswith("ZeroDivisionError: ")
    assert "return 1 // 0" in stumbled.details
    assert str(died.error) == "its process died (exit code -9)"


def test_an_interruption_stops_running_tasks_and_begins_no_others(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    interrupted = Interruption()
    marks = [tmp_path / f"{number}.mark" for number in range(3)]
    tasks = [partial(pool_tasks.double, 1)]
    tasks += [partial(pool_tasks.wait_for_the_end, mark) for mark in marks]
    found = {}
    for index, result in LocalProcesses().run(tasks, interrupted):
        found[index] = result
        if index == 0:
            until(marks[0].exists)
            interrupted.signum = signal.SIGINT
    assert found == {0: 2, 1: "stopped"}
    assert not marks[1].exists()


def test_an_abandoned_pool_leaves_no_process(tmp_path):
    mark = tmp_path / "one.mark"
    tasks = [partial(pool_tasks.double, 1), partial(pool_tasks.wait_for_the_end, mark)]
    with closing(LocalProcesses().run(tasks, Interruption())) as running:
        next(running)
        until(mark.exists)
    assert mark.with_suffix(".saved").exists()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_processes_save_and_end_with_their_parent(tmp_path, signum):
    marks = [tmp_path / "a.mark", tmp_path / "b.mark"]
    count = min(2, os.cpu_count() or 1)
    command = [sys.executable, "-m", pool_tasks.__name__, *map(str, marks[:count])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        try:
            until(lambda: all(mark.exists() and mark.read_text() for mark in marks[:count]))
            parent.send_signal(signum)
            output, _ = parent.communicate(timeout=PATIENCE_S)
        finally:
            parent.kill()
    until(lambda: not any(is_running(mark.read_text()) for mark in marks[:count]))
    assert all(mark.with_suffix(".saved").exists() for mark in marks[:count])
    assert output == ("stopped\n" * count if signum == signal.SIGTERM else "")


def test_a_process_stopped_before_its_task_arrives_still_answers():
    worker = start_child(pool._serve)
    try:
        worker.process.terminate()
        worker.pipe.send(partial(pool_tasks.double, 2))
        assert pool._receive(worker) == (4, False)
    finally:
        pool._dismiss([worker])
