"""The executor that runs tasks on the nodes of a Ray cluster."""

from __future__ import annotations

import pickle
import secrets
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairbench.errors import RunFailed, UsageError
from fairbench.execute.executor import Failure, Saving, Task, attempt
from fairbench.execute.interruption import Interruption
from fairbench.execute.local_processes import Child, start_child
from fairbench.execute.sent_files import SentFiles, write_file
from fairbench.results.new_directories import made, renamed_to_fresh
from fairbench_ray.connection import Connected, Unreachable
from fairbench_ray.tasks import STOP, Ended, Over, Refused, serve

AUTO = "auto"
POLL_S = 0.2
CONNECT_S = 180.0  # Ray is slow on a busy machine
PATIENCE_S = 300.0  # how long a cluster's head may be unreachable
MOST_LOSSES = 3  # limit on losses of the head without a result between them


class _NotThere(Exception):
    """A failure to reach any cluster."""


class RayCluster:
    """Runs as many tasks at a time as a Ray cluster has processors.

    Tasks are as in ``LocalProcesses``; a task is restarted when its node is lost, or when the whole
    cluster was away for a while. Files that a ``Saving`` task saves are sent back and written here,
    once. Nothing that the executor starts outlives this process.
    """

    def __init__(self, address: str | None = None) -> None:
        """Use the cluster with head ``HOST:PORT``; by default, this machine's cluster.

        Raises UsageError without Ray.
        """
        if find_spec("ray") is None:
            raise UsageError("--executor ray needs the package ray: pip install '.[ray]'")
        self._address = address or AUTO

    def run(
        self, tasks: Sequence[Task], interrupted: Interruption
    ) -> Generator[tuple[int, Any], None, None]:
        """Run the tasks; if a process dies, only its own task fails.

        Raises UsageError if the cluster does not answer or a node is unfit for the tasks, and
        RunFailed once the cluster is lost for good.
        """
        sent_files = pickle.dumps(SentFiles.packed(tasks))
        left = {index: pickle.dumps(task) for index, task in enumerate(tasks)}
        losses, lost_s = 0, None
        while left and not interrupted():
            child = start_child(serve, self._address)
            try:
                for index, outcome in _outcomes(child, (sent_files, left), interrupted):
                    result = attempt(partial(_kept, tasks[index], outcome), interrupted)
                    del left[index]
                    losses = 0
                    yield index, result
                return
            except _NotThere as error:
                if lost_s is None:
                    raise UsageError(f"--ray-address {self._address}: {error}") from None
                if time.monotonic() - lost_s > PATIENCE_S:
                    raise self._gone() from None
                time.sleep(POLL_S)
            except (EOFError, OSError):
                losses, lost_s = losses + 1, time.monotonic()
                if losses > MOST_LOSSES:
                    raise self._gone() from None
            finally:
                with suppress(EOFError, OSError):
                    child.pipe.send(STOP)
                    while True:
                        child.pipe.recv()
                child.process.join()

    def _gone(self) -> RunFailed:
        return RunFailed(f"the Ray cluster at {self._address} was lost; the finished runs are kept")


def _outcomes(
    child: Child, work: tuple[bytes, Mapping[int, bytes]], interrupted: Interruption
) -> Iterator[tuple[int, bytes | Failure]]:
    """Yield outcomes while the child is connected. EOFError or OSError means that it died."""
    child.pipe.send(work)
    connected = asked_to_stop = False
    until = time.monotonic() + CONNECT_S
    try:
        while connected or not interrupted():
            if interrupted() and not asked_to_stop:
                asked_to_stop = True
                child.pipe.send(STOP)
            if not connected and time.monotonic() > until:
                raise _NotThere(f"no answer within {CONNECT_S:g} s")
            if not child.pipe.poll(POLL_S):
                continue
            match child.pipe.recv():
                case Connected():
                    connected = True
                case Ended(index, outcome):
                    yield index, outcome
                case Unreachable(reason):
                    raise _NotThere(reason)
                case Refused(reason):
                    raise UsageError(reason)
                case Over():
                    return
    finally:
        if not connected:  # the process would not receive our request
            child.process.kill()


def _kept(task: Task, outcome: bytes | Failure, _: Interruption) -> Any:
    """Return a task's result, after storing the files that the task saved."""
    if isinstance(outcome, Failure):
        return outcome
    result, files = pickle.loads(outcome)
    if isinstance(task, Saving):
        _save(files, task.folder)
    return result


def _save(files: Mapping[str, bytes], folder: Path) -> None:
    """Write received files into a folder, each entry completely or not at all.

    A folder whose name is taken gets a number, as a run's does; a file is replaced.
    """
    hidden = folder / f".writing-{secrets.token_hex(8)}"
    with made(folder):
        try:
            for name, content in files.items():
                write_file(hidden / name, content)
            for entry in sorted(hidden.iterdir()) if files else ():
                if entry.is_dir():
                    renamed_to_fresh(entry, folder / entry.name)
                else:
                    entry.replace(folder / entry.name)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
