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
from fairbench.execute.tasks import Child, Failure, Interruption, Saving, Task, attempt, start_child
from fairbench.results.new_directories import making_parents, renamed_to_fresh
from fairbench_load.sent_files import SentFiles, write_file
from fairbench_ray.connection import Connected, Unreachable
from fairbench_ray.tasks import STOP, EndedTask, Over, Refused, serve_tasks

AUTO = "auto"
POLL_S = 0.2  # seconds between two checks for messages or an interruption
CONNECT_S = 180.0  # seconds within which the cluster must answer, as Ray connects slowly
PATIENCE_S = 300.0  # seconds for which the cluster's head node may be unreachable
MOST_LOSSES = 3  # maximum number of consecutive losses of the head node while no task finishes


class _NotThere(Exception):
    """An error: no connection to a Ray cluster could be made."""


class RayCluster:
    """An executor that runs tasks on a Ray cluster, in parallel on all CPU cores of the cluster.

    A task is restarted if its node is lost, or if the whole cluster was unreachable for a while.
    Files that a ``Saving`` task saves on a node are copied to this machine. All tasks end when the
    executor's process ends. ``LocalProcesses`` explains which functions can be tasks.
    """

    def __init__(self, address: str | None = None) -> None:
        """Use the Ray cluster with its head at ``HOST:PORT``, by default a cluster on this machine.

        Raises UsageError if the package Ray is not installed.
        """
        if find_spec("ray") is None:
            raise UsageError("--executor ray needs the package ray: pip install '.[ray]'")
        self._address = address or AUTO

    def run(
        self, tasks: Sequence[Task], interrupted: Interruption
    ) -> Generator[tuple[int, Any], None, None]:
        """Run the tasks, and yield the number and the result of each task.

        If a worker process dies, only its current task fails.

        Raises UsageError if the cluster does not answer or if a node cannot run the tasks. Raises
        RunFailed if the cluster cannot be reached for a long time, or is lost too often.
        """
        sent_files = pickle.dumps(SentFiles.packed(tasks))
        left = {index: pickle.dumps(task) for index, task in enumerate(tasks)}
        losses, lost_s = 0, None
        while left and not interrupted():
            child = start_child(serve_tasks, self._address)
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
    """Yield each task's result. Raises EOFError or OSError if the child process has died."""
    child.pipe.send(work)
    connected = asked_to_stop = False
    until = time.monotonic() + CONNECT_S
    try:
        while connected or not interrupted():
            if interrupted() and not asked_to_stop:
                asked_to_stop = True
                child.pipe.send(STOP)
            if not connected and time.monotonic() > until:
                raise _NotThere(f"the cluster did not answer within {CONNECT_S:g} s")
            if not child.pipe.poll(POLL_S):
                continue
            match child.pipe.recv():
                case Connected():
                    connected = True
                case EndedTask(index, outcome):
                    yield index, outcome
                case Unreachable(reason):
                    raise _NotThere(reason)
                case Refused(reason):
                    raise UsageError(reason)
                case Over():
                    return
    finally:
        if not connected:  # a process that is still connecting does not read the message STOP
            child.process.kill()


def _kept(task: Task, outcome: bytes | Failure, _: Interruption) -> Any:
    """Write the files that a task saved to its folder, and return the task's result."""
    if isinstance(outcome, Failure):
        return outcome
    result, files = pickle.loads(outcome)
    if isinstance(task, Saving):
        _save(files, task.folder)
    return result


def _save(files: Mapping[str, bytes], folder: Path) -> None:
    """Write received files into a folder, each file or subfolder completely or not at all.

    A received file replaces an existing file with the same name. If a folder with a received
    folder's name exists, a number is appended to the received folder's name.
    """
    hidden = folder / f".writing-{secrets.token_hex(8)}"
    with making_parents(folder):
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
