"""A command in a process of its own, whose descendants can all be found."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

MARK = "FAIRBENCH_TEST_MARK"
WAIT_S = 900  # a long limit, because machines are busy


@contextmanager
def running(*arguments):
    """Run ``fairbench`` with these arguments; ``process.mark`` finds all processes that
    it started.
    """
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "fairbench", *map(str, arguments)],
        env=os.environ | {MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.mark = mark
    try:
        yield process
        process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()
        left = lasting(mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, "processes outlived the command"


def lasting(mark):
    """Return descendants that still run after two minutes."""
    deadline = time.monotonic() + 120
    while (found := descendants(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def descendants(mark):
    """Return processes that carry the mark, which zombies no longer do."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environment.split(b"\0"):
                found.append(int(folder.name))
    return found


def tree(pid):
    """Return a process and all its descendants."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))):
            parents[int(folder.name)] = int(stat[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def runs(pid):
    """Tell whether a process exists and is no zombie, which only its parent can remove."""
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def _stat(pid):
    """Return the fields of a process's stat file in /proc: state, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def wait_until(condition, process):
    """Poll until the condition holds; fail after ``WAIT_S`` seconds, or if the process
    ends before.
    """
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_gone(pids):
    """Poll until none of the processes runs; fail after ``WAIT_S`` seconds."""
    deadline = time.monotonic() + WAIT_S
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def lines(path):
    """Return the number of lines in a file, 0 if there is none."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def only(parent):
    """Return the only entry of a directory."""
    (found,) = parent.iterdir()
    return found


def summary(path):
    """Return the summary in a run's directory."""
    return json.loads((path / "summary.json").read_text())


def under_way(process, parent):
    """Return the only run's directory in ``parent``, once a few requests have finished."""
    records = "*/live/requests.jsonl"
    wait_until(lambda: any(lines(path) > 3 for path in parent.glob(records)), process)
    return only(parent)
