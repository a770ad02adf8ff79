"""A command in its own process, whose descendants can all be found."""

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
WAIT_S = 900  # long, because the machine may be busy


@contextmanager
def running(*arguments):
    """Run ``fairbench`` with these arguments. ``process.mark`` finds all started processes."""
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
    """Return the descendants that still run after two minutes."""
    deadline = time.monotonic() + 120
    while (found := descendants(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def descendants(mark):
    """Return the processes that carry the mark. Zombies no longer carry it."""
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
    """Tell whether a process exists. A zombie, which only its parent can remove, does not count."""
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def _stat(pid):
    """Return the fields of a process's stat file in /proc: state, parent and so on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def wait_until(condition, process):
    """Poll until the condition holds. Fail after ``WAIT_S`` seconds, or if the process ends."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_gone(pids):
    """Poll until none of the processes runs. Fail after ``WAIT_S`` seconds."""
    deadline = time.monotonic() + WAIT_S
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def lines(path):
    """Return the number of lines in a file, or 0 without the file."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def only(parent):
    """Return the only entry of a directory."""
    (found,) = parent.iterdir()
    return found


def summary(path):
    """Return the summary in a run's directory."""
    return json.loads((path / "summary.json").read_text())


def under_way(process, parent):
    """Return the directory of the only run in ``parent`` once a few requests have finished."""
    records = "*/live/requests.jsonl"
    wait_until(lambda: any(lines(path) > 3 for path in parent.glob(records)), process)
    return only(parent)
