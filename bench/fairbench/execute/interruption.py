"""Ctrl-C without harm: signals only set a flag, which is checked between two events."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STUCK_S = 1.0  # a second signal that much later finds code that has not polled: it is stuck


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
        self._noticed = False
        self._asked_s = 0.0

    def __call__(self) -> bool:
        self._noticed = self.signum is not None
        return self._noticed

    def ask(self, signum: int, _: FrameType | None) -> None:
        """Handle a signal; raise KeyboardInterrupt if the code inside ignored an earlier signal."""
        now_s = time.monotonic()
        if self.signum is None:
            self.signum, self._asked_s = signum, now_s
        elif not self._noticed and now_s - self._asked_s > STUCK_S:
            raise KeyboardInterrupt

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
    stops at a safe point and saves. If it does not poll for a second, such as in an endless loop of
    a user's scheduler, another signal does raise it. Does nothing off the main thread.
    """
    asked = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    previous = {signum: signal.signal(signum, asked.ask) for signum in SIGNALS}
    try:
        yield asked
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
