"""A program in which an engine's own code schedules the requests of a simulated run.

The simulator writes operations to the standard input of ``bridge.py``, and reads answers from the
standard output of ``bridge.py``. An operation is a line with a JSON list (name and arguments); an
answer is a line of JSON.

The program imports the engine once, for all runs. Each run has its own child process, so that no
run sees the state of an earlier run. A run's child process forks a process for each replica, so
that replicas compute in parallel. The simulator communicates with each replica's process through a
socket.

``bridge.py`` imports only the standard library and the engine. In a run with a fairbench scheduler,
the child process also imports fairbench. ``bridge.py`` ends when its standard input ends, or within
a second after its parent process has ended.
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

from fairbench_engines.replica.inside.replicas import OPERATIONS, EngineReplicas

INSIDE = Path(__file__).resolve().parent
LOOK_S = 1.0  # seconds between two checks of whether the parent process still runs
SOURCE_ONLY = "source-only"


def main(arguments: list[str]) -> int:
    """Carry out the simulator's operations until standard input ends; return the exit code.

    The first argument is the name of the engine, and the second is a file descriptor through which
    the sockets of replicas arrive. If the third argument is ``SOURCE_ONLY``, the process answers
    only the operation ``source``, and does not import the engine, because the import takes seconds.
    """
    # Ctrl-C is ignored, because the simulator ends this process by closing its standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent(time.sleep)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # redirects the engine's standard output to standard error
    try:
        engine = import_module(f"fairbench_engines.replica.inside.{arguments[0]}_bridge")
        loaded = engine.source()
        if SOURCE_ONLY not in arguments:
            engine.load()
            gc.freeze()  # later garbage collections skip the engine's modules
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
    """Serve a run in a forked copy of this process; return False if the run ended with an error.

    ``passing`` is the file descriptor through which the sockets of replicas arrive.
    """
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
    with socket.socket(fileno=os.dup(passing)) as passed:
        _, descriptors, _, _ = socket.recv_fds(passed, 1, 1)
    with socket.socket(fileno=descriptors[0]) as channel:
        if copy := os.fork():
            return copy
        _end_with_parent(time.sleep)
        answers = channel.makefile("wb")
        try:
            replica, messages = run.replica(index, tells_evicted), channel.makefile("rb")
            known = {name: getattr(replica, name) for name in OPERATIONS}
            _write(answers, True)
            while message := _read(messages):
                operation, *values = message
                _write(answers, known[operation](*values))
        except Exception as error:
            _write(answers, {"failed": failure(error)})
            os._exit(1)
        os._exit(0)


def _read(messages: BinaryIO | None = None) -> list[Any]:
    """Return the next message of a stream (default: standard input), or [] at the end."""
    line = (messages or sys.stdin.buffer).readline()
    message: list[Any] = json.loads(line) if line else []
    return message


def _write(answers: BinaryIO, answer: Any) -> None:
    answers.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
    answers.flush()


def _end_with_parent(sleep: Callable[[float], None]) -> None:
    """Start a thread that ends this process when its parent ends, even if the main thread hangs."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def failure(error: Exception) -> dict[str, Any]:
    """Return the type and text of an error, and the file, line and function that raised the error.

    ``fits`` is False if the error shows that the engine differs from the supported releases: a call
    from this package failed, or the engine used a missing attribute of a stand-in.
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
