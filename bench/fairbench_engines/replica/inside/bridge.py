"""The program in the engine's Python: it asks the engine's own code for every decision.

The program imports nothing but the standard library and the engine; a run with a scheduler of
fairbench inside the engine also imports fairbench, in the run's copy of the process. Each line of
its input is a JSON list, an operation with its arguments; each line of its output is the JSON
answer. The program imports the engine once, and serves each run in a copy of itself, so that no run
sees the state that another run has left. Each replica of a run is a copy of the run's process, with
a socket of its own in place of input and output; replicas therefore compute at the same time. The
program ends with its input, or within a second after the process that started it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from fairbench_engines.replica.inside.replicas import OPERATIONS, ClockedReplica, EngineReplicas

INSIDE = Path(__file__).resolve().parent
LOOK_S = 1.0  # time between two looks for the parent process
SOURCE_ONLY = "source-only"


def main(arguments: list[str]) -> int:
    """Answer the operations of simulations on the engine that the first argument names.

    The second argument is the number of the file descriptor that passes the sockets of replicas.
    With a third argument, ``SOURCE_ONLY``, the engine is not imported, which takes many seconds,
    and the only operation is ``source``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the simulator's, which ends the input
    _end_with_parent(time.sleep)
    answers = _own_output()
    try:
        engine = import_module(f"fairbench_engines.replica.inside.{arguments[0]}_bridge")
        loaded = engine.source()
        if SOURCE_ONLY not in arguments:
            engine.load()
            gc.freeze()  # no collection looks at the engine's modules again
        while operation := _read():
            if operation == ["source"]:
                now = engine.source()
                _write(answers, {**now, "is_loaded": now == loaded})
            elif not _served_by_copy(answers, engine.BRIDGE, int(arguments[1])):
                return 1
    except Exception as error:
        _write(answers, {"failed": failure(error)})
        return 1
    return 0


def _served_by_copy(answers: BinaryIO, bridge: Callable[[], EngineReplicas], passing: int) -> bool:
    """Serve a run in a copy of this process; return whether the run came to its end."""
    copy = os.fork()
    if copy:
        _, status = os.waitpid(copy, 0)
        return status == 0
    _end_with_parent(time.sleep)
    try:
        run = bridge()
        copies: list[int] = []
        _write(answers, True)
        while (message := _read()) != ["end"]:
            if not message:
                os._exit(1)
            operation, *values = message
            if operation == "open":
                _write(answers, run.configure(values[0]))
            elif operation == "add":
                copies.append(_started_replica(run, passing, len(copies), *values))
                _write(answers, True)
            else:  # "ended"
                _, status = os.waitpid(copies[values[0]], 0)
                _write(answers, os.waitstatus_to_exitcode(status))
        for one in copies:
            os.waitpid(one, 0)
        _write(answers, True)
    except Exception as error:
        _write(answers, {"failed": failure(error)})
        os._exit(1)
    os._exit(0)


def _started_replica(run: EngineReplicas, passing: int, index: int, tells_evicted: bool) -> int:
    """Start a copy of this process for a replica; return the number of the copy's process."""
    with socket.socket(fileno=os.dup(passing)) as passed:
        _, descriptors, _, _ = socket.recv_fds(passed, 1, 1)
    with socket.socket(fileno=descriptors[0]) as channel:
        if copy := os.fork():
            return copy
        _end_with_parent(time.sleep)
        answers = channel.makefile("wb")
        try:
            _serve(run.replica(index, tells_evicted), channel.makefile("rb"), answers)
        except Exception as error:
            _write(answers, {"failed": failure(error)})
            os._exit(1)
        os._exit(0)


def _serve(replica: ClockedReplica, messages: BinaryIO, answers: BinaryIO) -> None:
    """Answer the operations of a replica until the input ends."""
    known = {name: getattr(replica, name) for name in OPERATIONS}
    _write(answers, True)
    while message := _read(messages):
        operation, *values = message
        _write(answers, known[operation](*values))


def _read(messages: BinaryIO | None = None) -> list[Any]:
    """Return the next message of a stream, or of the input; an empty list at the end."""
    line = (messages or sys.stdin.buffer).readline()
    message: list[Any] = json.loads(line) if line else []
    return message


def _own_output() -> BinaryIO:
    """Return standard output for the answers only; what the engine prints goes to the errors."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _write(answers: BinaryIO, answer: Any) -> None:
    answers.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
    answers.flush()


def _end_with_parent(sleep: Callable[[float], None]) -> None:
    """End this process when its parent has ended, even within an endless loop of the engine."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def failure(error: Exception) -> dict[str, Any]:
    """Return what failed and where.

    ``fits`` is false if the bridge's own call of the engine failed, or if the engine asked for an
    attribute that the bridge's stand-ins lack: the engine is unlike the releases that are known.
    """
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1]
    ours = Path(last.filename).resolve().parent == INSIDE
    text = " ".join(str(error).split()) or type(error).__name__
    return {
        "type": type(error).__name__,
        "text": text,
        "file": Path(last.filename).name,
        "line": last.lineno,
        "function": last.name,
        "fits": not ours and "'Bare' object" not in text,
    }
