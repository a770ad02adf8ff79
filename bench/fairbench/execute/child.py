"""A child process with a pipe, which starts in a clean state and with delayed signals."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running
from types import ModuleType
from typing import Any, NamedTuple

from fairbench.execute.interruption import SIGNALS

# Spawned, so that a process starts clean whatever threads this one has.
SPAWN = get_context("spawn")


class Child(NamedTuple):
    """A process, and the parent's end of its pipe."""

    process: BaseProcess
    pipe: Connection


def start_child(target: Callable[..., None], *arguments: Any) -> Child:
    """Call ``target(pipe, *arguments)`` in a new process.

    Signals wait there until it unblocks them, when it has handlers of its own.
    """
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs, *arguments))
    with _signals_held_back(), _without_script():
        process.start()
    theirs.close()
    return Child(process, ours)


def leave_signals_to_parent() -> None:
    """Ignore signals in a child: its parent hears them too, and says what to do."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Delay signals to the end of the block; a process started inside inherits the mask."""
    ensure_running()  # the resource tracker, whose start would let them through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide this process's script, so that a process started inside does not run it again."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
