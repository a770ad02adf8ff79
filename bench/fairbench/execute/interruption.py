"""Ctrl-C without harm: signals only set a flag, which is checked between two events."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The run ended because of a signal. The message names the saved files.

    ``exit_code`` is the command's exit code, as in ``Interruption``.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interruption:
    """A flag that returns, when called, whether an interruption was requested."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def __call__(self) -> bool:
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """The exit code: 128 plus the signal's number, such as 130 for Ctrl-C."""
        return 128 + (self.signum or signal.SIGINT)

    def ended(self, message: str) -> Interrupted:
        """Return the exception to raise after all has stopped; it names the remaining tasks."""
        return Interrupted(message, self.exit_code)


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let SIGINT and SIGTERM only set the ``Interruption`` within the block.

    Python would raise KeyboardInterrupt in the middle of a state change. The code inside polls,
    stops at a safe point and saves. Does nothing off the main thread.
    """
    asked = Interruption()

    def note(signum: int, _: FrameType | None) -> None:
        asked.signum = asked.signum or signum

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    previous = {signum: signal.signal(signum, note) for signum in SIGNALS}
    try:
        yield asked
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
