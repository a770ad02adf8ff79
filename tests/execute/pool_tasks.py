"""Tasks for the pool, which its processes import."""

import os
import signal
import time
from functools import partial
from pathlib import Path

from fairbench.errors import UsageError


def double(number, interrupted):
    return 2 * number


def noted(folder, number, interrupted):
    """Leave a mark in the folder when the task starts."""
    (folder / str(number)).write_text(str(os.getpid()))
    return number


def refuse(interrupted):
    raise UsageError("dp = 0: must be above 0")


def stumble(interrupted):
    return 1 // 0


def die(interrupted):
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_the_end(mark: Path, interrupted):
    """Start, report the start, and continue until asked to stop."""
    mark.write_text(str(os.getpid()))
    while not interrupted():
        time.sleep(0.01)
    mark.with_suffix(".saved").write_text("")
    return "stopped"


def keep(folder: Path, interrupted):
    """Save a folder that holds a file, and a file. Return both paths."""
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "table").write_bytes(b"rows")
    (folder / "note").write_bytes(b"noted")
    return str(folder)


def until(condition, patience_s=300):
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


if __name__ == "__main__":  # a parent process that the test kills
    import sys

    from fairbench.execute.tasks import LocalProcesses, interruptible
    from tests.execute import pool_tasks

    with interruptible() as asked:
        tasks = [partial(pool_tasks.wait_for_the_end, Path(name)) for name in sys.argv[1:]]
        for _, result in LocalProcesses().run(tasks, asked):
            print(result, flush=True)
