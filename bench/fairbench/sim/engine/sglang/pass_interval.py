"""The interval between a worker's admission passes, in decode steps."""

from __future__ import annotations


class PassInterval:
    """A pass is due if nothing decodes, and ``every`` steps after the last due pass.

    SGLang's ``num_continuous_decode_steps``; 1 is after each step. A prefill is followed by a pass
    at once, since it is no decode step. Whether anybody waited does not matter: steps are counted
    from pass to pass, so a request may come in between and has to wait for the next.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._last = 0

    def is_due(self, steps: int, *, decoding: bool) -> bool:
        """Return whether a pass is due after ``steps`` steps in total; count it if it is due."""
        due = not decoding or (steps - self._last) % self._every == 0
        if due:
            self._last = steps
        return due

    def left(self, steps: int) -> int:
        """Return the decode steps until the next pass, at least 1."""
        return self._every - (steps - self._last) % self._every
